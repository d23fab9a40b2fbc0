"""Recompute sets: the modules of a layer whose outputs a framework drops and computes again in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MODULES: tuple[str, ...] = (
    "layernorm",
    "activation",
    "mla_up_proj",
    "core_attn",
    "moe_act",
    "shared_experts",
    "mlp",
    "moe",
    "second_matmul",
)
"""Modules by Megatron-Core's labels, where it has one."""
WITHIN: dict[str, tuple[str, ...]] = {"mlp": ("activation",), "moe": ("moe_act", "shared_experts")}
"""Modules that others hold: who computes these again has computed them."""
ALONE = "-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeSet:
    """A choice of activation checkpointing: `modules` are recomputed; `full` keeps each layer's input alone.

    `declared` sets have a name in the profile; the others are those that its free modules make.
    """

    name: str
    modules: tuple[str, ...] = ()
    full: bool = False
    declared: bool = True

    @property
    def outermost(self) -> tuple[str, ...]:
        """The modules that lie in no other one of the set."""
        held = {inner for module in self.modules for inner in WITHIN.get(module, ())}
        return tuple(module for module in self.modules if module not in held)


def free_sets(modules: Sequence[str], declared: Sequence[RecomputeSet]) -> tuple[RecomputeSet, ...]:
    """Every set of `modules` that is not declared, of fewer before of more from the end of the list: "layernorm+mlp",
    and "mlp-only" where that, in any order, is the name of a declared set."""
    names, known = {words_of(it.name) for it in declared}, {frozenset(it.modules) for it in declared if not it.full}
    found = []
    for mask in range(1 << len(modules)):
        chosen = tuple(module for place, module in enumerate(modules) if mask >> place & 1)
        if frozenset(chosen) not in known:
            name = "+".join(chosen)
            while words_of(name) in names:
                name += ALONE
            found.append(RecomputeSet(name=name, modules=chosen, declared=False))
    return tuple(found)


def words_of(name: str) -> tuple[str, ...]:
    """What a set's name joins by +, whatever its order."""
    return tuple(sorted(name.split("+")))


def modules_of(name: str) -> frozenset[str]:
    """The modules that a set's name lists, in any order; empty if it lists none."""
    words = name.removesuffix(ALONE).split("+")
    return frozenset(words if set(words) <= set(MODULES) else ())
