"""Pages of the commands: an overview, and one page a verb with its sub-verbs inside."""

from __future__ import annotations

from collections.abc import Iterable

from manpages import words
from manpages.interface import Command, Parameter
from manpages.roff import Page, bold, italic


def overview_page(app: Command, version: str) -> Page:
    """dlbctl(1): what there is."""
    page = Page("dlbctl", 1, app.brief, version)
    page.heading("SYNOPSIS")
    page.synopsis(app.called, _options_in_brief(app), (italic("COMMAND"), f"[{italic('ARGUMENT')} ...]"))
    page.heading("DESCRIPTION")
    page.text(words.OVERVIEW)
    page.heading("COMMANDS")
    for command in app.commands:
        page.item(bold(command.called), f"{command.help[0]} See {_page_name(command)}(1).")
    page.heading("OPTIONS")
    page.item(
        ", ".join(map(bold, app.help_names)), "Say what a command does and which options it has; of every command."
    )
    _list(page, app.options)
    _tagged(page, "EXIT STATUS", ((bold(str(code)), meaning) for code, meaning in words.EXIT_STATUS.items()))
    _tagged(page, "ENVIRONMENT", ((bold(variable), meaning) for variable, meaning in words.ENVIRONMENT.items()))
    _tagged(page, "FILES", ((italic(path), meaning) for path, meaning in words.FILES.items()))
    _examples(page, "")
    _see_also(page, map(_page_name, app.commands))
    return page


def verb_page(command: Command, version: str) -> Page:
    """dlbctl-VERB(1)."""
    page = Page(_page_name(command), 1, command.brief, version)
    page.heading("SYNOPSIS")
    for one in command.commands or (command,):
        page.synopsis(one.called, _options_in_brief(one), map(_argument_in_brief, one.arguments))
    page.heading("DESCRIPTION")
    page.text("\n\n".join(command.help))
    if command.commands:
        _sub_verbs(page, command.commands)
    for heading, parameters in (("ARGUMENTS", command.arguments), ("OPTIONS", command.options)):
        if parameters:
            page.heading(heading)
            _list(page, parameters)
    for heading, text in words.SECTIONS.get(command.words[0], {}).items():
        page.heading(heading)
        page.text(text)
    _examples(page, command.words[0])
    page.heading("EXIT STATUS")
    page.text("0 when all went well; dlbctl(1) lists the others.")
    _see_also(page, ["dlbctl"])
    return page


def _sub_verbs(page: Page, commands: tuple[Command, ...]) -> None:
    """A part for each sub-verb; options that all of them have come once, at the end."""
    common = [option for option in commands[0].options if all(option in one.options for one in commands)]
    page.heading("COMMANDS")
    for one in commands:
        page.subheading(one.called)
        page.text("\n\n".join(one.help))
        _list(page, one.arguments)
        _list(page, (option for option in one.options if option not in common))
    if common:
        page.heading("OPTIONS OF ALL OF THEM")
        _list(page, common)


def _list(page: Page, parameters: Iterable[Parameter]) -> None:
    for parameter in parameters:
        names = ", ".join(map(bold, (*parameter.names, *parameter.off)))
        tag = " ".join(filter(None, (names, parameter.value and italic(parameter.value))))
        page.item(tag, " ".join((parameter.help, *parameter.facts)))


def _tagged(page: Page, heading: str, entries: Iterable[tuple[str, str]]) -> None:
    page.heading(heading)
    for tag, text in entries:
        page.item(tag, text)


def _examples(page: Page, verb: str) -> None:
    examples = words.EXAMPLES.get(verb, {})
    if examples:
        page.heading("EXAMPLES")
    for what, lines in examples.items():
        page.text(what)
        page.code(lines.strip())


def _see_also(page: Page, names: Iterable[str]) -> None:
    page.heading("SEE ALSO")
    page.text(", ".join((*(f"{name}(1)" for name in sorted(names)), "dlbctl.toml(5)")))


def _page_name(command: Command) -> str:
    return f"dlbctl-{command.words[0]}"


def _options_in_brief(command: Command) -> list[tuple[str, str]]:
    return [("|".join((option.names[0], *option.off)), option.value) for option in command.options]


def _argument_in_brief(argument: Parameter) -> str:
    return italic(argument.value) if argument.required else f"[{italic(argument.value)}]"
