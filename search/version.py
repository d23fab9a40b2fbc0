"""The version, in one place: the build, `--version` and the provenance read it here."""

VERSION = "0.1.0"
