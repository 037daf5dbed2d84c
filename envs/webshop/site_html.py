"""The website's HTML: the original's elements in markup of our own.

Agents written for the original's site find what they look for: ``#search_input``, ``.btn`` buttons, ``.product-link``
links, radio buttons with the options' values, ``#instruction-text h4`` and ``#reward pre``. The texts inside ``main``
are those of the original's page, in its order and one text node each; what the site adds for people stands outside of
it, and on the pages of an unfinished episode only in attributes. Hence no white space between the tags.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from .html import escaped
from .pages import json_in_html
from .site_page import Choice, Detail, Done, Index, Item, Page, Results, Row

_LOOKING_GLASS = (
    '<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="8.5" cy="8.5" r="5.5"/><path d="m13 13 5 5"/></svg>'
)
_SHOP_SIGN = (
    '<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 4h16l1.5 5.5a2.5 2.5 0 0 1-4.8.5 2.5 2.5 0 0 1-4.7 0'
    ' 2.5 2.5 0 0 1-4.7 0 2.5 2.5 0 0 1-4.8-.5zM5 13v7h14v-7"/></svg>'
)
_DONE_TITLE = "Thank you for shopping with us!"


def text(value: Any) -> str:
    """Return text for HTML; a carriage return survives the browser's parser only as a reference."""
    return escaped(value).replace("\r", "&#13;")


def document(title: str, body: str, up: str, version: str, attributes: str = "") -> str:
    """Return a whole page.

    Args:
        title: of the window.
        body: what it shows, HTML.
        up: relative address of the site's root, "" or "../…".
        version: of the static files, so that browsers may keep them for good.
        attributes: further attributes of the body, HTML.
    """
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{text(title)} · WebShop</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f'<link rel="stylesheet" href="{up}static/site.css?v={version}">'
        f'<script src="{up}static/site.js?v={version}" defer></script></head><body{attributes}>{body}</body></html>'
    )


def shop_page(page: Page, step: int, version: str, *, notice: str = "", over: bool = False) -> str:
    """Return the page of a session, as it stands at ``…/SESSION/STEP``.

    Args:
        page: what is on it.
        step: number of actions so far; the page's controls act as the next one.
        version: of the static files.
        notice: said to a person above the page, "" for nothing.
        over: the episode is over although nothing was bought: the controls are shut.
    """
    target = f"{step}/click"
    title, main = _MAINS[type(page)](page, step, target)
    body = _bar(step, page)
    if notice:
        body += f'<p class="notice" role="status">{text(notice)}</p>'
    shut = " inert" if over else ""
    body += f'<main id="shop" class="{page.__struct_config__.tag or "index"}" data-step="{step}"'
    body += f' data-url="{text(page.url)}"{shut}>{main}</main>'
    if isinstance(page, Done):
        body += _outcome(page)
    return document(title, body, "../", version)


def _bar(step: int, page: Page) -> str:
    """Return the site's own bar, made of icons: their names are attributes, for no text may be added."""
    home = f'<a class="home" href="../" aria-label="Other tasks" title="Other tasks">{_SHOP_SIGN}</a>'
    if isinstance(page, Index | Done):
        return f'<header class="bar">{home}</header>'
    return (
        f'<header class="bar">{home}<form class="anywhere" role="search" method="post" action="{step}/search">'
        '<input type="search" name="search_query" aria-label="Search the shop" placeholder="Search..."'
        ' autocomplete="off" required>'
        f'<button type="submit" aria-label="Search" title="Search">{_LOOKING_GLASS}</button></form></header>'
    )


def _instruction(instruction: str, lead: str = "Instruction:") -> str:
    return f'<div id="instruction-text"><h4 aria-level="2">{lead}<br>{text(instruction)}</h4></div>'


def _button(target: str, label: str, kind: str) -> str:
    value = text(label.lower())
    return (
        f'<form method="post" action="{target}"><button type="submit" class="btn btn-{kind}" name="button"'
        f' value="{value}">{text(label)}</button></form>'
    )


def _head(instruction: str, target: str, back: str = "") -> str:
    buttons = _button(target, "Back to Search", "success") + (_button(target, back, "primary") if back else "")
    return f'{_instruction(instruction)}<div class="row">{buttons}</div>'


def _index(page: Index, step: int, target: str) -> tuple[str, str]:
    return "Search", (
        f'<div id="logo"><h2 aria-level="1">WebShop</h2></div>{_instruction(page.instruction, "Instruction: ")}'
        f'<form id="form-buscar" role="search" method="post" action="{step}/search">'
        '<input id="search_input" class="form-control" type="text" name="search_query" placeholder="Search..."'
        ' aria-label="Search the shop" autocomplete="off" autofocus required>'
        '<button class="btn btn-success" type="submit">Search</button></form>'
    )


def _results(page: Results, step: int, target: str) -> tuple[str, str]:
    title = f"Page {page.number} (Total results: {page.total})"
    turns = _button(target, "< Prev", "primary") if page.number > 1 else ""
    turns += _button(target, "Next >", "primary")
    rows = "".join(_row(row, target) for row in page.rows)
    return title, (
        f'{_head(page.instruction, target)}<div class="row"><h3 aria-level="1">{title}</h3>{turns}</div>'
        f'<ul class="results">{rows}</ul>'
    )


def _row(row: Row, target: str) -> str:
    asin = text(row.asin)
    seen = " seen" if row.seen else ""
    return (
        f'<li class="list-group-item"><p class="product-asin"><a class="product-link{seen}" rel="nofollow"'
        f' href="{target}?product={quote(row.asin, safe="")}" aria-describedby="title-{asin}">{asin}</a></p>'
        f'<h4 class="product-title" id="title-{asin}" aria-level="2">{text(row.name)}</h4>'
        f'<p class="product-price">{text(row.price)}</p></li>'
    )


def _item(page: Item, step: int, target: str) -> tuple[str, str]:
    groups = "".join(
        _group(number, name, choices, target) for number, (name, choices) in enumerate(page.choices.items())
    )
    pages = "".join(_button(target, name, "primary") for name in page.sub_pages)
    return page.name, (
        f"{_head(page.instruction, target, '< Prev')}"
        f'<div class="item"><div class="options">{groups}</div><div class="facts">'
        f'<h2 aria-level="1">{text(page.name)}</h2><p class="price">Price: {text(page.price)}</p>'
        f'<p>Rating: {text(page.rating)}</p><div class="row">{pages}</div></div>'
        f'<div class="buy">{_button(target, "Buy Now", "lg purchase")}</div></div>'
    )


def _group(number: int, name: str, choices: Iterable[Choice], target: str) -> str:
    radios = ""
    for place, choice in enumerate(choices):
        state = " checked" if choice.chosen else ""
        # The value cannot be said as an action, neither by an agent nor by this page.
        state += "" if choice.open else ' disabled title="The shop has no action for this value"'
        tag = f"radio_{number}_{place}"
        radios += (
            f'<span><input type="radio" id="{tag}" name="{text(name)}" value="{text(choice.value)}"{state}>'
            f'<label for="{tag}">{text(choice.value)}</label></span>'
        )
    return (
        f'<form method="post" action="{target}"><fieldset class="radio-toolbar"><legend>{text(name)}</legend>'
        f'{radios}<button type="submit" class="choose" aria-label="Choose"></button></fieldset></form>'
    )


def _detail(page: Detail, step: int, target: str) -> tuple[str, str]:
    body = "".join(f'<li><p class="product-info">{text(line)}</p></li>' for line in page.texts)
    body = f"<ul>{body}</ul>" if body else ""
    body += "".join(f"<p>{text(kind)}</p>" for kind in page.kinds)
    body += "".join(
        f'<div class="card"><h4 aria-level="2">&#34;{text(review.title)}&#34;</h4><p class="score"><span>{review.score}'
        f'</span></p><p class="content">{text(review.body)}</p></div>'
        for review in page.reviews
    )
    return f"{page.title}: {page.name}", (
        f"{_head(page.instruction, target, '< Prev')}"
        f'<div class="detail" aria-label="{text(page.title)}" role="region">{body}</div>'
    )


def _done(page: Done, step: int, target: str) -> tuple[str, str]:
    def facts(*labels: str, values: Mapping[str, str]) -> str:
        lines = (f"<h4>{label}{_pre(values[label]) if label in values else ''}</h4>" for label in labels)
        return "".join(lines)

    wares = ("asin", "options", "attrs", "category", "query", "product category")
    bought = {**dict.fromkeys(wares, "None"), "asin": page.asin, "options": json_in_html(page.options)}
    wanted = ("asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query")
    # The original keeps these lines hidden, and empty where the goal is not told; its text has them all the same.
    return _DONE_TITLE, (
        f'<div id="thankyou"><h1>{_DONE_TITLE}</h1></div><div id="stats"><div hidden><h3>Your code: </h3>'
        f"<p>{_pre('None')} (Paste it in your MTurk interface.)</p><h2>Purchased</h2>"
        f"{facts(*wares, values=bought)}<h2>Target</h2>{facts(*wanted, values={})}"
        f'<h4>Goal <span id="goal">{_pre("None")}</span></h4><h2>Reward</h2></div>'
        f'<h3 id="reward" aria-level="2">Your score (min 0.0, max 1.0)<pre>{page.reward!r}</pre></h3>'
        f'<h4 hidden>Reward Details <span id="reward_info">{_pre("None")}</span></h4></div>'
    )


def _pre(value: str) -> str:
    return f"<code>{text(value)}</code>"


_PARTS = (
    ("Kind of product", "r_type", ""),
    ("Attributes", "r_att", "w_att"),
    ("Options", "r_option", "w_option"),
    ("Price limit", "r_price", "w_price"),
)


def _outcome(page: Done) -> str:
    """What a person wants to know after the purchase; the reward's parts stand in an attribute for programs."""
    rows = ""
    for label, part, weight in _PARTS:
        if part in page.parts:
            share = f"weight {page.parts[weight]:.0%}" if weight in page.parts else "multiplies the rest"
            rows += f'<tr><th scope="row">{label}</th><td>{float(page.parts[part]):.0%}</td><td>{share}</td></tr>'
    chosen = ", ".join(f"{name}: {value}" for name, value in page.options.items()) or "none"
    parts = text(json_in_html(page.parts))
    return (
        f'<section id="outcome" aria-label="Outcome" data-asin="{text(page.asin)}" data-parts="{parts}">'
        f"<h2>What was wanted</h2><p>{text(page.instruction)}</p><h2>What you bought</h2><p>{text(page.name)}<br>"
        f"Options: {text(chosen)}</p><h2>Where the score comes from</h2><table>{rows}</table>"
        '<p><a class="again" href="../?split=train">Another task</a></p></section>'
    )


def start_page(env_id: str, splits: Iterable[str], version: str) -> str:
    """Return the site's first page: start a task."""
    options = "".join(f'<option value="{text(split)}">{text(split)}</option>' for split in splits)
    return document(
        "Start",
        f'<main id="start" class="start"><h1>WebShop</h1><p>A shop with one customer, an instruction and a score.'
        " Search, choose the product and its options, and buy what the instruction asks for. The episode is an"
        f" ordinary session of the environment <code>{text(env_id)}</code>.</p>"
        '<form method="get" action="./"><label for="split">Any task of</label>'
        f'<select id="split" name="split">{options}</select>'
        '<button class="btn btn-success" type="submit">Start</button></form>'
        '<form method="get" action="./"><label for="task">This task</label>'
        '<input id="task" name="task" placeholder="test/0" autocomplete="off" required>'
        '<button class="btn btn-success" type="submit">Start</button></form></main>',
        "",
        version,
    )


def login_page(version: str, then: str, problem: str = "") -> str:
    """Return the page that asks for the API key; ``then`` is where to go afterwards, within the site."""
    complaint = f'<p class="notice" role="alert">{text(problem)}</p>' if problem else ""
    return document(
        "Log in",
        f'<main class="start"><h1>WebShop</h1>{complaint}<p>This hub asks for an API key.</p>'
        '<form id="login" method="post" action="login"><label for="key">API key</label>'
        '<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>'
        f'<input type="hidden" name="next" value="{text(then)}">'
        '<button class="btn btn-success" type="submit">Log in</button></form></main>',
        "",
        version,
    )


def problem_page(problem: Mapping[str, Any], up: str, version: str, back: str = "") -> str:
    """Return the page for an error; ``back`` is where a person may go on, "" for nowhere but the start."""
    title = str(problem.get("title", ""))
    go_on = f'<a class="again" href="{text(back)}">Go on where the shop stands</a> ' if back else ""
    return document(
        title,
        f'<main class="start"><h1>{text(title)}</h1><p>{text(problem.get("detail", ""))}</p>'
        f"<p>{text(problem.get('hint', ''))}</p>"
        f'<p>{go_on}<a class="again" href="{up or "./"}">Other tasks</a></p></main>',
        up,
        version,
        f' data-problem="{text(json.dumps(problem))}"',  # for programs
    )


_MAINS: dict[type, Any] = {
    Index: _index,
    Results: _results,
    Item: _item,
    Detail: _detail,
    Done: _done,
}
