"""A report laid out as plain text and as HTML."""

from __future__ import annotations

import io
from html import escape
from typing import Literal

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anyinit._report.report import Report, Section

# Fixed, so that a report is the same text in a terminal, in a log and in a test.
WIDTH = 180
# Sentences are set narrower than the widest table.
SENTENCES = 100


def to_text(report: Report) -> str:
    """Lay a report out as plain text, without colour codes.

    >>> print(to_text(Report("Nothing planned", (), ())))
    Nothing planned

    Arguments:
        report: what to show.

    Returns:
        Lines of at most ``WIDTH`` characters.
    """
    out = io.StringIO()
    console = Console(
        file=out, width=WIDTH, color_system=None, force_terminal=False, force_jupyter=False
    )
    console.print(Text(report.title))
    if report.rows:
        console.print()
        console.print(_table(report))
    for section in report.sections:
        console.print()
        console.print(Text(section.title))
        for sentence, names in section.items:
            console.print(Padding(Text(sentence), (0, 0, 0, 2)), width=SENTENCES)
            if names:
                console.print(Padding(Text(", ".join(names)), (0, 0, 0, 4)), width=SENTENCES)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def to_html(report: Report) -> str:
    """Lay a report out as HTML, for notebooks.

    >>> to_html(Report("A <b> plan", (), ()))
    '<p>A &lt;b&gt; plan</p>'

    Arguments:
        report: what to show.

    Returns:
        A paragraph, a table and a list a section; everything in them is escaped.
    """
    parts = [f"<p>{escape(report.title)}</p>"]
    if report.rows:
        head = "".join(f"<th>{escape(column)}</th>" for column in report.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in report.rows)
        parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    parts += [_section(section) for section in report.sections]
    return "".join(parts)


def _table(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for column in report.columns:
        # Text, not str: rich would read brackets as markup, here and in the cells.
        justify: Literal["left", "right"] = "right" if column in report.numeric else "left"
        table.add_column(Text(column), justify=justify, overflow="fold")
    for row in report.rows:
        table.add_row(*map(Text, row))
    return table


def _cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"


def _section(section: Section) -> str:
    items = "".join(
        f"<li>{escape(sentence)}{'<br>' if names else ''}"
        f"{', '.join(f'<code>{escape(name)}</code>' for name in names)}</li>"
        for sentence, names in section.items
    )
    return f"<p>{escape(section.title)}</p><ul>{items}</ul>"
