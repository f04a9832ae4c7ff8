"""Command `suite whatif`: the what-if page in a browser, or one of its answers as text.

    suite whatif                                                          # write reports/whatif and serve it
    suite whatif schedule=zbv versus=zb_h1 ranks=8 microbatches=32 link=0.1        # print what the page shows
    suite whatif --serve schedule=zbv ranks=8                             # serve the page at this point

The page runs the same Python files in a browser, so both give equal numbers. `reports/whatif` is a static folder, which
any web host can serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from suite.cli import Arguments, argument, command
from suite.core.exit_codes import Exit
from suite.core.words import value_of

if TYPE_CHECKING:
    from suite.whatif.answer import AnswerPart

NUMBER = "{:.10g}".format
SERVER, PORT = ("reports", "port"), 8314
KEYS = {
    "view": "NAME        schedule (default) or cluster",
    "reports": "FOLDER   folder whose records and claims the page shows next to its answers (default: reports)",
    "port": f"N          port of the server (default: {PORT})",
}


@command(
    "Serve the what-if page, or print one of its answers about a schedule or a cluster.",
    "schedule=zbv versus=zb_h1 ranks=8 microbatches=32 link=0.1",
    argument("--serve", action="store_true", help="serve the page at the point of the words"),
    argument("--json", action="store_true", help="print the whole answer, with every op and its times"),
    argument("--write", action="store_true", help="write the page's folder without serving it"),
    keys=KEYS,
    open_keys=True,
)
def main(arguments: Arguments) -> int:
    words = [word for word in arguments.words if word.partition("=")[0] not in SERVER]
    if (words or arguments.json) and not (arguments.serve or arguments.write):
        return _print(arguments, words)
    return _serve(arguments, words)


def _serve(arguments: Arguments, words: Sequence[str]) -> int:
    from suite.cli.plan import whole
    from suite.core.files import check_folder
    from suite.whatif.site import server, write_site

    page = write_site(check_folder(arguments.reports, "reports"))
    if arguments.write:
        print(page)
        return Exit.OK
    with server(page.parent.parent, whole(arguments, "port", PORT)) as running:
        fragment = urlencode([(word.partition("=")[0], value_of(word)) for word in words])
        print(
            f"http://127.0.0.1:{running.server_port}/{page.parent.name}/{'#' + fragment if words else ''}", flush=True
        )
        print("Press Ctrl-C to stop.", flush=True)
        running.serve_forever()
    return Exit.OK


def _print(arguments: Arguments, words: Sequence[str]) -> int:
    from suite.core.files import check_folder
    from suite.whatif.answer import as_json
    from suite.whatif.export import catalogue
    from suite.whatif.page import Page

    page = Page(catalogue(check_folder(arguments.reports, "reports")))
    answer = page.answer(words)
    if arguments.json:
        print(as_json(answer))
        return Exit.OK
    parts = {part.slot: part for part in page.more(words)}
    print("\n\n".join(text for part in (answer, *parts.values()) for text in _texts(part)))
    return Exit.OK


def _texts(part: AnswerPart) -> Iterator[str]:
    """The text of a part of an answer: title, sentences, facts and tables; the values of charts as tables."""
    import pandas as pd

    from suite.whatif.answer import CellLink

    yield from filter(None, (part.title, "\n".join(part.words)))
    yield from filter(None, ["\n".join(f"{fact.name}: {fact.text}" for fact in part.facts)])
    for chart in part.charts:
        curves = [pd.Series(each.y, each.x, name=each.name) for each in chart.series]
        yield f"{chart.title}: {chart.y}\n{pd.concat(curves, axis=1).to_string(na_rep='', float_format=NUMBER)}"
    for table in part.tables:
        rows = [[cell.text if isinstance(cell, CellLink) else cell for cell in row] for row in table.rows]
        text = pd.DataFrame(rows, columns=table.columns).to_string(index=False, na_rep="", float_format=NUMBER)
        yield "\n".join(filter(None, (table.title, text, table.note)))
