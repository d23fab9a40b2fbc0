"""Where a number comes from: its tag and its source."""

from typing import Literal, NamedTuple

Tag = Literal["spec", "measured", "fitted", "inherited", "assumed"]


class Provenance(NamedTuple):
    """Where a number comes from.

    tag: spec (vendor's sheet), measured, fitted (to measured runs), inherited (measured on another machine),
    assumed (no source: a choice of ours or of the user's file). source: one line that says where.
    """

    tag: Tag
    source: str

    def inherited(self, whence: str) -> "Provenance":
        """Of the same number where another thing than `whence` takes it: inherited, but for what is assumed anyway."""
        if self.tag == "assumed":
            return self
        found = whence if self.tag == "inherited" else f"{whence}, {self.tag}"
        return Provenance("inherited", f"{found}: {self.source}")
