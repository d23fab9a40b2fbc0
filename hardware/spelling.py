"""A misspelt name -> the one that was meant."""

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The name in `known` closest to `word`, or None if none is close."""
    import difflib

    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), list(names), n=1, cutoff=0.6)
    return names[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The text "; did you mean 'x'?" for a misspelt name, or nothing."""
    name = nearest(word, known)
    return "" if name is None else f"; did you mean {name!r}?"
