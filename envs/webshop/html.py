"""Pages as HTML, byte for byte as the original's templates give them; made only where somebody asks for HTML.

The original's server was made for Flask: addresses inside a page are the query strings that its ``url_for`` wrote.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from .catalogue import Product
from .pages import json_in_html
from .shop import DONE, INDEX, ITEM, SEARCH, Shop, State

_BOOTSTRAP = "https://maxcdn.bootstrapcdn.com/bootstrap/3.4.1/css/bootstrap.min.css"
_FONTS = "https://cdnjs.cloudflare.com/ajax/libs/font-awesome"
_SCRIPTS = (
    "https://ajax.googleapis.com/ajax/libs/jquery/3.5.1/jquery.min.js",
    "https://stackpath.bootstrapcdn.com/bootstrap/4.3.1/js/bootstrap.bundle.min.js",
)
_ESCAPES = str.maketrans({"&": "&amp;", ">": "&gt;", "<": "&lt;", "'": "&#39;", '"': "&#34;"})


def escaped(text: Any) -> str:
    """Return text with the five marks replaced as the original's templates do."""
    return str(text).translate(_ESCAPES)


def html_of(shop: Shop, state: State, instruction: str, session: str) -> str:
    """Return the HTML of the page that a session sees."""
    if state.page == INDEX:
        return _index(instruction, session)
    if state.page == DONE:
        return _done(shop, state)
    if state.page == SEARCH:
        body = _results(shop, state, session)
    else:
        body = (_item if state.page == ITEM else _sub)(shop, state, session)
    head = (
        _shop_head() + _instruction(instruction) + _button_row(_link(session_id=session), "success", "Back to Search")
    )
    return head + body


def _link(**values: Any) -> str:
    # Lists repeat their name; mappings stand as Python writes them.
    return escaped("/?" + urlencode(list(_pairs(values.items())), safe="!$'()*,/:;?@", errors="replace"))


def _pairs(items: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    for name, value in items:
        if isinstance(value, tuple | list):
            yield from ((name, one) for one in value)
        elif value is not None:
            yield name, value


def _sheet(address: str) -> str:
    return f'    <link rel="stylesheet" href="{address}">\n'


def _shop_head() -> str:
    # The tab inside the address is the original's.
    sheets = [_sheet("/static/style.css"), _sheet(_BOOTSTRAP), _sheet(f"{_FONTS}/4.0.3/css/font-awesome.css\t")]
    scripts = [f'    <script src="{address}"></script>\n' for address in _SCRIPTS]
    return (
        f"<!DOCTYPE html>\n<html>\n  <head>\n{''.join(sheets + scripts)}"
        '    <link rel="icon" href="data:,">\n  </head>\n  <body>\n    <div class="container py-5">\n'
    )


def _plain_head() -> str:
    sheets = [_sheet("/static/style.css"), _sheet(f"{_FONTS}/4.7.0/css/font-awesome.min.css"), _sheet(_BOOTSTRAP)]
    return (
        f"<!DOCTYPE html>\n<html>\n  <head>\n{''.join(sheets)}"
        '    <link rel="icon" href="data:,">\n  </head>\n  <body>\n'
        "    <!-- Code reference: https://bootsnipp.com/snippets/m13mN -->\n"
        '    <div class="container" style="margin-top: 8%;">\n'
        '      <div class="col-md-6 col-md-offset-3">     \n        <div class="row">\n'
    )


def _instruction(text: str) -> str:
    return (
        '      <div class="row top-buffer">\n        <div class="col-sm-6">\n'
        '          <div id="instruction-text" class="text-center">\n'
        f"            <h4>Instruction:<br>{escaped(text)}</h4>\n"
        "          </div>\n        </div>\n      </div>\n"
    )


def _button_row(link: str, kind: str, label: str) -> str:
    return (
        '      <div class="row top-buffer">\n'
        f'        <form method="post" action="{link}">\n'
        f'          <button type="submit" class="btn btn-{kind}">{label}</button>\n'
        "        </form>\n      </div>\n"
    )


def _index(instruction: str, session: str) -> str:
    return (
        f'{_plain_head()}          <div id="logo" class="text-center">\n            <h2>WebShop</h2>\n'
        "          </div>\n"
        '          <div id="instruction-text" class="text-center">\n'
        f"            <h4>Instruction: <br>{escaped(instruction)}</h4>\n          </div>\n"
        f'          <form role="form" id="form-buscar" method="post" action="{_link(session_id=session)}">\n'
        '            <div class="form-group">\n              <div class="input-group">\n'
        '                <input id="search_input" class="form-control" type="text" name="search_query"'
        ' placeholder="Search..." required/>\n'
        '                <span class="input-group-btn">\n'
        '                  <button class="btn btn-success" type="submit">'
        '<i class="glyphicon glyphicon-search" aria-hidden="true"></i>Search</button>\n'
        "                </span>\n              </div>\n            </div>\n          </form>\n"
        "        </div>            \n      </div>\n    </div>\n  </body>\n</html>"
    )


def _turn(session: str, state: State, step: int, label: str) -> str:
    assert state.number is not None, "result pages have a number"
    link = _link(session_id=session, keywords=state.keywords, page=state.number + step)
    return (
        f'              <form method="post" action="{link}">\n'
        f'                <button type="submit" class="btn btn-primary">{label}</button>\n'
        "              </form>\n"
    )


def _results(shop: Shop, state: State, session: str) -> str:
    assert state.number is not None, "result pages have a number"
    back = _turn(session, state, -1, "&lt; Prev") if state.number > 1 else ""
    on = _turn(session, state, 1, "Next &gt;")
    items = "".join(_result(shop.catalogue.product(number), state, session) for number in shop.shown(state))
    return (
        '      <div class="row top-buffer">\n        <div class="col-sm-8">\n          <div class="display-4">\n'
        f"            <h3>Page {state.number} (Total results: {len(state.results)})</h3>\n          </div>\n"
        f'          \n            <div class="col-sm-2">\n{back}            </div>\n'
        f'            <div class="col-sm-2">\n{on}            </div>\n          \n        </div>\n      </div>\n\n'
        f'      <div class="row top-buffer">\n        {items}\n      </div>\n    </div>\n  </body>\n</html>'
    )


def _result(product: Product, state: State, session: str) -> str:
    link = _link(session_id=session, asin=product.asin, keywords=state.keywords, page=state.number, options={})
    pad = " " * 20
    heading = f'{pad}<h4 class="mt-0 font-weight-bold mb-2 product-'
    row = f'{pad}<div class="d-flex align-items-center justify-content-between mt-1">\n'
    hidden = "".join(
        f'{row}  {pad}<h5 class="font-weight-bold my-2 product-{name}">{escaped(value)}</h5>\n{pad}</div>\n'
        for name, value in _kinds(product)
    )
    return (
        '\n        <div class="col-lg-12 mx-auto list-group-item">\n          <div class="col-lg-4">\n'
        f'            <img src="{escaped(product.image)}" class="result-img">\n'
        '          </div>\n          <div class="col-lg-8">\n            <ul class="list-group shadow">\n'
        '                <div class="media align-items-lg-center flex-column flex-lg-row p-3">\n'
        '                  <div class="media-body order-2 order-lg-1 searched-product">\n'
        f'{pad}\n{heading}asin"><a class="product-link" href="{link}">{escaped(product.asin)}</a></h5>\n'
        f'{heading}title">{escaped(product.name)}</h5>\n'
        f'{row}                      <h5 class="font-weight-bold my-2 product-price">'
        f"{escaped(product.price_tag)}</h6>\n{pad}</div>\n<!--\n{hidden}-->\n"
        "                  </div>\n                </div>\n            </ul>\n"
        "          </div>\n        </div>\n        "
    )


def _kinds(product: Product) -> tuple[tuple[str, str], ...]:
    return (
        ("category", product.category), ("query", product.query), ("product_category", product.product_category),
    )  # fmt: skip


def _item_values(shop: Shop, state: State, session: str) -> dict[str, Any]:
    asin = shop.product(state).asin
    return {"session_id": session, "asin": asin, "keywords": state.keywords, "page": state.number}


def _item(shop: Shop, state: State, session: str) -> str:
    product, options = shop.product(state), dict(state.options)
    values = _item_values(shop, state, session)
    back = _link(session_id=session, keywords=state.keywords, page=state.number)
    groups = "".join(_group(name, contents, values, options) for name, contents in product.options.items())
    pages = [("description", "Description"), ("bulletpoints", "Features"), ("reviews", "Reviews")]
    columns = "".join(_page_button(name, label, values, options) for name, label in pages)
    extra = _page_button("attributes", "Attributes", values, options) if shop.attributes_page else ""
    buy = _link(session_id=session, asin=product.asin, options=options)
    return (
        f"{_button_row(back, 'primary', '&lt; Prev')}"
        '      <div class="row top-buffer">\n        <div class="col-md-4 mb-4 mb-md-0">\n'
        '          <div class="row top-buffer">\n'
        f'            <img id="product-image" src="{escaped(product.image)}" class="item-page-img">\n'
        f"          </div>\n          {groups}\n        </div>\n"
        f'        <div class="col-md-6">\n          <h2>{escaped(product.name)}</h2>\n'
        f"          <h4>Price: {escaped(product.price_tag)}</h4>\n"
        f"          <h4>Rating: {escaped(product.rating)}</h4>\n"
        f'          <div class="row top-buffer">\n{columns}            {chr(10) + extra + " " * 12 if extra else ""}\n'
        "          </div>\n        </div>\n"
        '        <div class="col-sm-2">\n          <div class="row top-buffer">\n'
        f'            <form method="post" action="{buy}">\n'
        '              <button type="submit" class="btn btn-lg purchase">Buy Now</button>\n            </form>\n'
        "          </div>\n        </div>\n      </div>\n    </div>\n  </body>\n"
        f"{_script(json_in_html(options), json_in_html(product.images))}</html>"
    )


def _group(name: str, contents: Iterable[str], values: dict[str, Any], options: dict[str, str]) -> str:
    pad = " " * 18
    radios = ""
    for number, content in enumerate(contents):
        link = _link(**values, options={**options, name: content})
        tag = f"radio_{escaped(name)}{number}"
        radios += (
            f"\n{pad}\n{pad}\n{pad}\n"
            f'{pad}<input type="radio" id="{tag}" name="{escaped(name)}" value="{escaped(content)}"'
            f' data-url="{link}">\n{pad}<label for="{tag}">{escaped(content)}</label>\n                '
        )
    return (
        f'\n            <div class="row top-buffer">\n              <h4>{escaped(name)}</h4>\n'
        f'              <div class="radio-toolbar">\n                {radios}\n'
        "              </div>\n            </div>\n          "
    )


def _page_button(name: str, label: str, values: dict[str, Any], options: dict[str, str]) -> str:
    link = _link(**values, sub_page=label, options=options)
    return (
        f'            <div class="col-sm-3" name="{name}">\n              <form method="post" action="{link}">\n'
        f'                <button class="btn btn-primary" type="submit">{label}</button>\n'
        "              </form>\n            </div>\n"
    )


def _script(options: str, images: str) -> str:
    return (
        "  <script>\n    $(document).ready(function() {\n      $('input:radio').each(function() {\n"
        f"        //console.log($(this).val());\n        let options = JSON.parse(`{options}`);\n"
        "        let optionValues = $.map(options, function(value, key) { return value });\n"
        "        //console.log(optionValues);\n        if (optionValues.includes($(this).val())) {\n"
        f"          $(this).prop('checked', true);\n\n          let option_to_image = JSON.parse(`{images}`);\n"
        "//          console.log($(this).val());\n//          console.log(options);\n"
        "//          console.log(option_to_image);\n          let image_url = option_to_image[$(this).val()];\n\n"
        "          //console.log(image_url);\n          if (image_url) {\n"
        '            $("#product-image").attr("src", image_url);\n          }\n        }\n        \n'
        '        // reload with updated options\n        this.addEventListener("click", function() {\n'
        "          window.location.href = this.dataset.url;\n        });\n\n      });\n    });\n  </script>\n"
    )


def _sub(shop: Shop, state: State, session: str) -> str:
    product = shop.product(state)
    back = _link(**_item_values(shop, state, session), options=dict(state.options))
    name, card = _CARDS[state.sub_page](product)
    return (
        f"{_button_row(back, 'primary', '&lt; Prev')}"
        '      <div class="row top-buffer">\n        <div class="col-md-12">\n          <div class="row top-buffer">\n'
        f'            <div class="col-sm-6" name="{name}">\n              <div class="card card-body">\n{card}'
        "            </div>\n          </div>\n        </div>\n      </div>\n"
        "    </div>\n  </body>\n</html>"
    )


_CARD_END = "              </div>\n"


def _description(product: Product) -> tuple[str, str]:
    text = escaped(product.description)
    return "description", f'                <p class="product-info">{text}</p>\n{_CARD_END}'


def _list(texts: Iterable[str], kind: str) -> str:
    pad = " " * 18
    lines = "".join(f'\n{pad}<li><p class="{kind}"> {escaped(text)}</p></li>\n{pad}' for text in texts)
    return f"                <ul>\n{pad}{lines}\n                </ul>\n"


def _features(product: Product) -> tuple[str, str]:
    return "bulletpoints", _list(product.bullets, "product-info") + _CARD_END


def _attributes(product: Product) -> tuple[str, str]:
    row = f'{" " * 14}<div class="d-flex align-items-center justify-content-between mt-1">\n'
    kinds = "".join(
        f'{row}{" " * 16}<h5 class="font-weight-bold my-2 product-{name}">{escaped(value)}</h5>\n{" " * 14}</div>\n'
        for name, value in _kinds(product)
    )
    # A second column behind the list; the page closes the last column itself.
    column = f'            </div>\n            <div class="col-sm-6" name="description">\n{kinds}'
    return "description", f"{_list(product.attributes, 'attribute')}{_CARD_END}{column}"


def _reviews(product: Product) -> tuple[str, str]:
    cards = "".join(
        f'<div class="card"><h4>&#34;{escaped(review.title)}&#34;</h4><p><span>{review.score}</span></p>'
        f'<p class="content">{escaped(review.body)}</p></div>\n'
        for review in product.reviews
    )
    return "reviews", f"                \n{cards}{_CARD_END}"


_CARDS = {"Description": _description, "Features": _features, "Reviews": _reviews, "Attributes": _attributes}


def _done(shop: Shop, state: State) -> str:
    def heading(tag: str, label: str, value: str, end: str = "h4") -> str:
        return f'              <h4 id="{tag}">{label}<pre>{value}</pre></{end}>\n'

    asin, options = escaped(shop.product(state).asin), json_in_html(dict(state.options))
    bought = heading("asin", "asin", asin, "p") + heading("options", "options", options)
    for tag, label in (("purchased_attrs", "attrs"), ("purchased-category", "category")):
        bought += heading(tag, label, "None")
    bought += heading("purchased-query", "query", "None") + heading("purchased-pc", "product category", "None")
    target = heading("goal-asin", "asin", "", "p")
    for tag, label in (
        ("goal-options", "options"), ("goal-attrs", "attrs"), ("goal-price", "price upper"),
        ("goal-instruction-text", "instuction text"), ("goal-category", "category"), ("goal-pc", "product category"),
        ("goal-query", "query"),
    ):  # fmt: skip
        target += heading(tag, label, "")
    return (
        f'{_plain_head()}          <div id="thankyou" class="text-center">\n'
        "            <h1>Thank you for shopping with us!</h1>\n          </div>\n"
        '          <div id="stats" class="text-center">\n            <h3 align="mturk_code">Your code: </h3>\n'
        "            <p><pre>None</pre> (Paste it in your MTurk interface.)</p>\n"
        '            <div style="display:none">\n              <h2 align="left">Purchased</h2>\n'
        f'              <hr class="solid">\n{bought}              <h2 align="left">Target</h2>\n'
        f'              <hr class="solid">\n{target}'
        '              <h4>Goal <div id="goal"><pre>None</pre></div></h4>\n'
        '              <h2 align="left">Reward</h2>\n            </div>\n            <hr class="solid">\n'
        '      \t\t\t<h3   id="reward">Your score (min 0.0, max 1.0)'
        f"<pre>{escaped(state.reward)}</pre></h3>\n"
        '            <h4 hidden>Reward Details <div id="reward_info"><pre>None</pre></div></h4>\n'
        "          </div>\n        </div>            \n      </div>\n    </div>\n  </body>\n</html>"
    )
