"""Where the TOML files are: a shipped name or a path -> the file; errors learn their file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hardware.errors import InputError
from hardware.reader import Table, did_you_mean

DATA = Path(__file__).parent / "data"


def names_of(kind: str) -> tuple[str, ...]:
    """The names shipped in data/<kind>, sorted."""
    return tuple(sorted(path.stem for path in (DATA / kind).glob("*.toml")))


def find(
    kind: str, what: str, name: str, near: Path | None, *, shipped: tuple[Table, str] | None = None
) -> Path:
    """The file of a shipped name or of a path, which is relative to the folder `near`.

    `shipped` = (table, key) allows shipped names only and puts the place of the name into the error.
    """
    names = names_of(kind)
    if name in names:
        return DATA / kind / f"{name}.toml"
    looks_like_path = name.endswith(".toml") or "/" in name or "\\" in name
    path = Path(name) if near is None else near / name
    if shipped is None and (looks_like_path or os.path.isfile(path)):
        return path
    hint = did_you_mean(name, names) or ";"
    message = f"unknown {what} {name!r}{hint} known: {', '.join(names)}"
    if shipped is not None:
        table, key = shipped
        raise table.error(key, message)
    raise InputError(f"{message}; or a path to a TOML file")


@contextmanager
def in_file(table: Table) -> Iterator[None]:
    """Errors of a dataclass's own check name the key; here they get their file and the path of the table."""
    try:
        yield
    except InputError as error:
        where = f"{table.path}." if table.path else ""
        raise InputError(f"{table.file}: {where}{error}") from None
