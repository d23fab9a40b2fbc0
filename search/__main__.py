"""`python -m search` is the `meshscout` command."""

import sys

from search.cli import main

sys.exit(main())
