"""Definition of a subcommand: help, arguments, and execution up to the exit status."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.resources import conf_folder
from suite.core.words import is_word, shell_line, value_of
from suite.runner.launch.signals import run_command

CONF = conf_folder()
REPORTS = "reports"  # the default of RunConfig.reports, which takes seconds to import
_HELP = ("-h", "--help")
_MIN_SIMILARITY = 0.6  # least similarity (difflib ratio) of a suggested word


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of one call.

    Attributes:
        given: All arguments in order.
        words: Every KEY=VALUE, +KEY=VALUE, ~KEY and @FILE, in order.
        options: Flags and positional arguments.
    """

    given: tuple[str, ...]
    words: tuple[str, ...]
    options: argparse.Namespace

    def value(self, key: str, default: str) -> str:
        """The last value of `key` on the command line, or `default`."""
        values = [value_of(word) for word in self.words if word.partition("=")[0] == key]
        return values[-1] if values else default

    @property
    def reports(self) -> Path:
        """The folder of `reports=`. Raises InvalidRequest for an empty name."""
        folder = self.value("reports", REPORTS)
        if not folder:
            raise InvalidRequest("reports=", rule="a folder", legal=f"reports={REPORTS}")
        return Path(folder)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidRequest(message, rule=" ".join(self.format_usage().split()), legal=f"{self.prog} --help")


def no_options(parser: argparse.ArgumentParser) -> None:
    """Add neither flags nor positional arguments."""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand of `suite`.

    Attributes:
        name: Name of the subcommand.
        summary: One sentence for the help of the command and for the list of commands.
        run: Function that executes the command and returns the exit status. It imports slow modules itself.
        example: Arguments of a typical call, as typed in a shell.
        keys: KEY=VALUE words of the command, each with its help as "VALUE  sentence".
        config: Whether words are Hydra overrides, so that all keys of a run's configuration are legal.
        reads: Legal keys of a run's configuration, if not all of them are.
        options: Function that adds flags and positional arguments to the parser.
        resumes: Whether the same command continues after an interrupt.
        file: Suffix of an optional file that the command takes as `options.file`; empty for none.
    """

    name: str
    summary: str
    run: Callable[[Arguments], int]
    example: str
    keys: Mapping[str, str] = field(default_factory=dict)
    config: bool = False
    reads: Sequence[str] = ()
    options: Callable[[argparse.ArgumentParser], None] = no_options
    resumes: bool = False
    file: str = ""

    def line(self, *words: str) -> str:
        """Command line of this command with these words, quoted for a shell."""
        return shell_line(self.name, words)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Execute the command with these arguments, by default those of the process. Returns the exit status."""
        words = sys.argv[1:] if arguments is None else list(arguments)
        return run_command(self._main, words, resumes=self.resumes)

    def _main(self, arguments: Sequence[str]) -> int:
        if any(argument in _HELP for argument in arguments):
            sys.stdout.write(self.help())
            return Exit.OK
        return self.run(self.read(arguments))

    def read(self, arguments: Sequence[str]) -> Arguments:
        """Split and check the arguments. Raises InvalidRequest, with the nearest legal word for an unknown one."""
        parser = self._parser()
        words, rest, unknown = list[str](), list[str](), list[str]()
        is_value = False  # whether the argument is the value of the previous flag
        for argument in arguments:
            if not is_value and (self.config or self.keys) and is_word(argument):
                words.append(argument)
                continue
            rest.append(argument)
            flag = parser._option_string_actions.get(argument)
            name = argument.partition("=")[0]
            if not is_value and name.startswith("--") and name not in ("--", *parser._option_string_actions):
                unknown.append(argument)
            is_value = not is_value and flag is not None and flag.nargs is None
        for argument in unknown:  # before the parser reports a missing argument
            raise self._unknown(argument, parser)
        options, unknown = parser.parse_known_intermixed_args(rest)
        if self.file and options.file and not options.file.endswith(self.file):
            unknown = [options.file]
        for argument in unknown:
            raise self._unknown(argument, parser)
        if not self.config:
            for word in words:
                if (key := word.partition("=")[0]) not in self.keys:
                    raise UnknownName("key", key, self.keys, alike=_MIN_SIMILARITY, legal="")
        return Arguments(tuple(arguments), tuple(words), options)

    def _unknown(self, argument: str, parser: argparse.ArgumentParser) -> InvalidRequest:
        if argument.startswith("-"):
            options = [*parser._option_string_actions]
            return UnknownName("option", argument.partition("=")[0], options, alike=_MIN_SIMILARITY, legal="")
        if self.config and (group := _group_of(argument)):
            return InvalidRequest(f"unknown argument {argument!r}", rule="KEY=VALUE", legal=f"{group}={argument}")
        options = [*parser._option_string_actions, *(f"{key}=" for key in self.keys)]
        options += [f"{group}=" for group in _groups() if self.config]
        return UnknownName("argument", argument, options, alike=_MIN_SIMILARITY, legal="")

    def _parser(self) -> argparse.ArgumentParser:
        parser = _Parser(
            prog=f"suite {self.name}",
            description=self.summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.options(parser)
        if self.file:
            parser.add_argument("file", nargs="?", metavar=f"FILE{self.file}", help="a schedule file of PyTorch")
        return parser

    def help(self) -> str:
        """Usage, arguments, keys and an example."""
        parser = self._parser()
        lines = []
        if self.keys or self.config:
            usage = parser.format_usage().removeprefix("usage: ").rstrip()
            parser.usage = f"{usage} [KEY=VALUE ...]".replace("%", "%%")
            split = {f"{key}={text.partition('  ')[0]}": text.partition("  ")[2] for key, text in self.keys.items()}
            width = max(map(len, split), default=0)
            lines += ["keys:", *(f"  {word:<{width}}  {text.strip()}" for word, text in split.items())]
        if self.config:
            keys, choices = (" ".join(self.reads), []) if self.reads else ("every key", _groups())
            text = (
                f"and {keys} of a run's config, as Hydra overrides: KEY=VALUE, +KEY=VALUE, ~KEY. @FILE is a YAML list"
            )
            text += " of overrides. `suite run --cfg` prints all keys. conf/ holds the choices of a group"
            for part in (f"{text}: {' '.join(f'{group}=' for group in choices)}" if choices else f"{text}.",):
                lines += textwrap.wrap(part, 112, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        lines += ["", "example:", f"  suite {self.name} {self.example}".rstrip()]
        parser.epilog = "\n".join(lines).strip().replace("%", "%%")
        return parser.format_help()


def _groups() -> list[str]:
    """Config groups that an override may choose, in the order of conf/config.yaml."""
    file = CONF / "config.yaml"
    return re.findall(r"^  - (\w+):", file.read_text(encoding="utf-8"), re.MULTILINE) if file.is_file() else []


def _group_of(choice: str) -> str:
    """The first config group with this choice; empty where there is none."""
    return next((group for group in ("system", *_groups()) if (CONF / group / f"{choice}.yaml").is_file()), "")
