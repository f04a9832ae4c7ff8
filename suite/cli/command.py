"""Definition of a subcommand: help, arguments, and execution up to the exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NoReturn

from suite.core.errors import InvalidRequest, UnknownName
from suite.core.exit_codes import Exit
from suite.core.resources import conf_folder
from suite.core.words import is_word, value_of
from suite.runner.launch.signals import run_command

CONF = conf_folder()
REPORTS = "reports"  # the default of RunConfig.reports, which takes seconds to import
FORMAT = partial(argparse.HelpFormatter, width=112, max_help_position=32)
_MIN_SIMILARITY = 0.6  # least similarity (difflib ratio) of a suggested word
_OVERRIDES = (
    "the keys below, and every key of a run's config, as Hydra overrides: KEY=VALUE, +KEY=VALUE, ~KEY. @FILE is a YAML "
    "list of overrides. `suite run --cfg` prints all keys. The folders of conf/ hold the choices of a group."
)


class Arguments(argparse.Namespace):
    """Arguments of one call: flags and positional arguments by name, and other words.

    Attributes:
        words: Every KEY=VALUE, +KEY=VALUE, ~KEY and @FILE, in order.
    """

    words: tuple[str, ...] = ()

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


argument = partial(methodcaller, "add_argument")
"""A flag or a positional argument of a command, by the arguments of ArgumentParser.add_argument."""
DRY_RUN = argument("--dry-run", action="store_true", help="list the runs or jobs without starting them")
LABEL = argument("--label", action="append", default=[], metavar="KEY", help="show this key in labels of runs")


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand of `suite`.

    Attributes:
        run: Function that executes the command and returns the exit status. It imports slow modules itself.
        summary: One sentence for the help of the command and for the list of commands.
        example: Arguments of a typical call, as typed in a shell.
        declared: Flags and positional arguments.
        keys: KEY=VALUE words of the command, each with its help as "VALUE  sentence".
        config: Whether words are Hydra overrides, so that all keys of a run's configuration are legal.
        resumes: Whether the same command continues after an interrupt.
        open_keys: Whether the command checks the keys of its words itself, because they depend on other words.
        file: Suffix of an optional file that the command takes as `file`; empty for none.
    """

    run: Callable[[Arguments], int]
    summary: str
    example: str
    declared: Sequence[Callable[[argparse.ArgumentParser], object]] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    config: bool = False
    resumes: bool = False
    open_keys: bool = False
    file: str = ""

    @property
    def name(self) -> str:
        """The name of the function's module."""
        return self.run.__module__.rpartition(".")[2].replace("_", "-")

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Execute the command with these arguments, by default those of the process. Returns the exit status."""
        words = sys.argv[1:] if arguments is None else list(arguments)
        return run_command(self._main, words, resumes=self.resumes)

    def _main(self, arguments: Sequence[str]) -> int:
        if {"-h", "--help"} & {*arguments}:
            sys.stdout.write(self.help())
            return Exit.OK
        return self.run(self.read(arguments))

    def read(self, arguments: Sequence[str]) -> Arguments:
        """Split and check the arguments. Raises InvalidRequest, with the nearest legal word for an unknown one."""
        parser = self._parser()
        flags = [*parser._option_string_actions]
        words = [argument for argument in arguments if is_word(argument)] if self.config or self.keys else []
        rest = [argument for argument in arguments if argument not in words]
        given, unknown = parser.parse_known_intermixed_args(rest, Arguments())
        if self.file and given.file and not given.file.endswith(self.file):
            unknown = [given.file]
        for argument in unknown:
            raise self._unknown(argument, flags)
        for key in () if self.config or self.open_keys else (word.partition("=")[0] for word in words):
            if key not in self.keys:
                raise UnknownName("key", key, self.keys, alike=_MIN_SIMILARITY, legal="")
        given.words = tuple(words)
        return given

    def _unknown(self, argument: str, flags: Sequence[str]) -> InvalidRequest:
        if argument.startswith("-"):
            return UnknownName("option", argument.partition("=")[0], flags, alike=_MIN_SIMILARITY, legal="")
        from suite.config.families import groups

        by_group = {"system": [], **groups()} if self.config else {}
        if group := next((group for group, choices in by_group.items() if argument in choices), None):
            return InvalidRequest(f"unknown argument {argument!r}", rule="KEY=VALUE", legal=f"{group}={argument}")
        known = [*flags, *(f"{key}=" for key in self.keys), *(f"{group}=" for group in by_group)]
        return UnknownName("argument", argument, known, alike=_MIN_SIMILARITY, legal="")

    def _parser(self) -> _Parser:
        parser = _Parser(f"suite {self.name}", description=self.summary, formatter_class=FORMAT, allow_abbrev=False)
        for declare in self.declared:
            declare(parser)
        if self.file:
            parser.add_argument("file", nargs="?", metavar=f"FILE{self.file}", help="a schedule file of PyTorch")
        return parser

    def help(self) -> str:
        """Usage, arguments, keys and an example."""
        parser = self._parser()
        if self.keys or self.config:
            parser.usage = f"{parser.format_usage().removeprefix('usage: ').rstrip()} [KEY=VALUE ...]"
            keys = parser.add_argument_group("keys", _OVERRIDES if self.config else None)
            for key, text in self.keys.items():
                value, _, sentence = text.partition("  ")
                keys.add_argument(f"{key}={value}", help=sentence.strip())
        parser.add_argument_group("example", f"suite {self.name} {self.example}")
        return parser.format_help()


def command(
    summary: str, example: str, *declared: Callable[[argparse.ArgumentParser], object], **settings: Any
) -> Callable[[Callable[[Arguments], int]], Command]:
    """Decorator that makes a function the subcommand of its module. `settings` are further fields of Command."""
    return lambda run: Command(run, summary, example, declared, **settings)
