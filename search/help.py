"""What `meshscout --help` and `--version` print; no parser is needed for it."""

from search.version import VERSION

COMMANDS = {
    "search": "score every layout; print and write the Pareto frontier",
    "explain": "one layout in six steps, each figure with its formula",
    "why": "which rules leave a request without a layout, and what to change",
    "plan": "a layout by rule of thumb, each step with its reason, beside the search's best",
    "sweep": "many models, clusters and sizes: days, cost and energy of a training run",
    "report": "a Parquet file of search or sweep as one self-contained page",
    "validate": "measured runs against predictions",
    "calibrate": "fit a profile's rates to measured runs",
    "list": "what is shipped, with sources",
}
"""The commands and what each does."""
WIDTH = 78


def answer(arguments: list[str]) -> str:
    """What these arguments print if they ask for the help or the version alone, else nothing."""
    if arguments in (["-h"], ["--help"]):
        return help_text()
    return f"meshscout {VERSION}\n" if arguments == ["--version"] else ""


def help_text() -> str:
    """The help of the command itself."""
    column = max(map(len, (*COMMANDS, "-h, --help"))) + 4
    return "\n".join(
        [
            "usage: meshscout [-h] [--version] COMMAND ...",
            "",
            "Score every parallel training layout of a transformer on a GPU cluster.",
            "",
            "commands:",
            *(line for name, text in COMMANDS.items() for line in _wrapped(f"  {name}".ljust(column), text)),
            "",
            "options:",
            "  -h, --help".ljust(column) + "show this help, after a command that of the command",
            "  --version".ljust(column) + "show the version",
            "",
            "Exit codes: 0 done, 1 a fault of ours, 2 invalid input, 3 no feasible layout,",
            "130 interrupted.",
            "",
        ]
    )


def _wrapped(start: str, text: str) -> list[str]:
    """`text` behind `start`, in lines of at most WIDTH characters, the later ones indented."""
    lines = [start]
    for word in text.split():
        if len(lines[-1]) + len(word) > WIDTH:
            lines[-1] = lines[-1].rstrip()
            lines.append(" " * len(start))
        lines[-1] += f"{word} "
    return [*lines[:-1], lines[-1].rstrip()]
