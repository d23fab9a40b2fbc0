"""Every error that meshscout raises on purpose; the command line turns each into its exit code.

MeshscoutError
├── InputError         exit 2: one line that names the file, the key and the numbers
└── InfeasibleError    exit 3: no layout satisfies the rules
"""


class MeshscoutError(Exception):
    """Base of all errors raised on purpose."""


class InputError(MeshscoutError, ValueError):
    """A wrong input; its text is one line that names the file, the key and the numbers."""


class InfeasibleError(MeshscoutError):
    """No layout satisfies the rules; its text says which rules and with which numbers."""
