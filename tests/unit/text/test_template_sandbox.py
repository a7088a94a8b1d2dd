"""Templates that exceed limits in various ways, and ordinary ones, whose result is unchanged."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import Environment
from transformers import PreTrainedTokenizerFast

from plimsoll_runtime.text import template_limits as module
from plimsoll_runtime.text.chat_template import ChatTemplate, ChatTemplateError
from plimsoll_runtime.text.template_limits import ESCAPED, Budget, formatted, of_filter, of_method, product

LEAST = 2**20
MESSAGES = [{"role": "user", "content": "x"}]


def looped(step: str, then: str = "") -> str:
    return (
        "{% set big = 'x' * 100000 %}{% set ns = namespace(text='x' * 99, list=[1]) %}"
        "{% for i in range(50000) %}{% set " + step + " %}{% endfor %}" + then
    )


LOOPED = {
    "text doubles by ~": looped("ns.text = ns.text ~ ns.text"),
    "text doubles by +": looped("ns.text = ns.text + ns.text"),
    "text doubles by a filter": looped("ns.text = [ns.text, ns.text] | join"),
    "text doubles by %": looped("ns.text = '%s%s' % (ns.text, ns.text)"),
    "text doubles by format": looped("ns.text = '{0}{0}'.format(ns.text)"),
    "text doubles by replace": looped("ns.text = ns.text.replace('x', 'xx')"),
    "list doubles": looped("ns.list = ns.list + ns.list"),
    "texts are kept": looped("ns.list = ns.list + [big ~ i]"),
    "slices are kept": looped("ns.list = ns.list + [big[1:]]"),
    "results of methods are kept": looped("ns.list = ns.list + [big.upper()]"),
    "results of filters are kept": looped("ns.list = ns.list + [big | upper]"),
    "lists in lists": looped("ns.list = [ns.list, ns.list]", "{{ ns.list }}"),
    "tuples in tuples": looped("ns.list = (ns.list, ns.list)", "{{ ns.list | tojson }}"),
    "mappings in mappings": looped("ns.list = {'a': ns.list, 'b': ns.list}", "{{ ns.list | pprint }}"),
    "mappings by a call": looped("ns.list = dict(a=ns.list, b=ns.list)", "{{ ns.list }}"),
    "lists by a filter": looped("ns.list = (ns.list + ns.list) | batch(2) | list"),
    "views of mappings": looped("ns.list = {'a': ns.list, 'b': {'c': ns.list}.items()}", "{{ ns.list }}"),
    "equal lists": looped("ns.text = [ns.list, ns.list] == [ns.list, ns.list]").replace(
        "{% endfor", "{% set ns.list = [ns.list, ns.list] %}{% endfor"
    ),
    "slicing": looped("ns.text = big[1:]"),
    "comparing": looped("ns.text = big ~ i == big ~ i"),
    "searching": looped("ns.text = 'y' in big"),
    "counting": looped("ns.text = big.count('y')"),
    "a test": looped("ns.text = 'y' is in big"),
}
ONCE = {
    "text times": "{{ 'ab' * 10**9 }}",
    "list times": "{{ ([0] * 10**9) | length }}",
    **{f"wide by {name}": f"{{{{ 'x'.{name}(10**9) }}}}" for name in ("ljust", "rjust", "center", "zfill")},
    "a wide filter": "{{ 'x' | center(10**9) }}",
    "tabs": "{{ '\\t'.expandtabs(10**9) }}",
    "bytes of a number": "{{ (5).to_bytes(10**9, 'big') }}",
    "indented text": "{{ 'x\\nx' | indent(10**9) }}",
    "indented by a text": "{{ ('\\n' * 10000) | indent('x' * 10000, blank=true) }}",
    "indented JSON": "{{ [1, 2] | tojson(indent=10**9) }}",
    "separated JSON": "{{ ([1] * 10000) | tojson(separators=('x' * 10000, 'y')) }}",
    "a wide number by %": "{{ '%1000000000d' % 1 }}",
    "a width that is given by %": "{{ '%*d' % (10**9, 1) }}",
    "one text in many places by %": "{{ ('%(a)s' * 10000) % {'a': 'x' * 10000} }}",
    "the filter format": "{{ '%1000000000d' | format(1) }}",
    "a wide format": "{{ '{:>1000000000}'.format(1) }}",
    "a width that is given": "{{ '{:{}}'.format(1, 10**9) }}",
    "a format of a mapping": "{{ '{a:>1000000000}'.format_map({'a': 1}) }}",
    "many digits": "{{ '{:.1000000000f}'.format(1.5) }}",
    "one text in many places": "{{ ('{0}' * 10000).format('x' * 10000) }}",
    "a method by a filter": "{{ ('x' | attr('ljust'))(10**9) }}",
    "replacing": "{{ ('x' * 10000) | replace('x', 'y' * 10000) }}",
    "replacing nothing": "{{ ('x' * 10000).replace('', 'y' * 10000) }}",
    "joining": "{{ ('x' * 10000).join(['a'] * 10000) }}",
    "joining by a filter": "{{ range(10000) | join('x' * 10000) }}",
    "many wide texts": "{{ range(10000) | map('string') | map('center', 10000) | list | length }}",
    "a filled row": "{{ [1] | batch(10**9, 0) | list | length }}",
    "many slices": "{{ [1] | slice(10**9) | list | length }}",
    "lines": "{{ ('x' * 10000) | wordwrap(1, true, 'y' * 10000) }}",
    "links": "{{ ('http://a.b ' * 10000) | urlize(rel='x' * 10000) }}",
    "sums of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
    "characters": "{{ ('x' * 200000) | list | length }}",
    "characters that are chosen": "{{ ('x' * 200000) | select | list | length }}",
    "the first that is chosen": "{{ ('x' * 200000) | select('equalto', 'y') | first }}",
    "words": "{{ ('x ' * 100000).split() | length }}",
    "pieces": "{{ ('x' * 100000).split('x') | length }}",
    "lines of a text": "{{ ('\\v' * 100000).splitlines() | length }}",
    "written again and again": "{% for i in range(50000) %}{{ 'x' * 1000 }}{% endfor %}",
    "the template's text": "{% for i in range(50000) %}" + "y" * 1000 + "{% endfor %}",
    "a block": "{% set q %}{% for i in range(50000) %}" + "y" * 1000 + "{% endfor %}{% endset %}",
    "a filtered block": "{% filter upper %}{% for i in range(50000) %}" + "y" * 1000 + "{% endfor %}{% endfilter %}",
    "a macro": "{% macro m() %}" + "y" * 1000 + "{% endmacro %}{% for i in range(50000) %}{{ m() }}{% endfor %}",
}


@pytest.mark.matrix(42)
@pytest.mark.parametrize("template", [*LOOPED.values(), *ONCE.values()], ids=[*LOOPED, *ONCE])
def test_what_would_take_too_much_is_refused_before_it_does(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", LEAST)
    compiled = ChatTemplate(template)
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError, match=r"would be too large|exceeds? the limit of"):
            compiled.render(MESSAGES)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 8 * LEAST


@pytest.mark.parametrize("content", ["é" * 100_000, "x" * 3_000_000])
def test_what_may_be_made_grows_with_what_is_rendered(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_BYTES", 2**12)
    template = (
        "{% set ns = namespace(all='') %}{% for m in messages %}{% set ns.all = ns.all ~ m.content | trim + 'y' %}"
    )
    template += "{% endfor %}{{ ns.all.split('</think>')[-1] }}"
    messages = [{"role": "user", "content": content}] * 3
    assert ChatTemplate(template).render(messages) == (content + "y") * 3


ORDINARY = (
    "{{ 'a' ~ 1 ~ none ~ [1, 'b'] ~ 1.5 }}|{{ [1] + [2] }}|{{ (1,) + (2, 3) }}|{{ 7 + 3 }}|{{ 7 % 4 }}|{{ -7 // 2 }}",
    "{{ '%s and %05.2f' % ('a', 2.5) }}|{{ '%(a)s' % {'a': [1]} }}|{{ '%d' | format(3) }}|{{ '%%' % () }}",
    "{{ '{0:>8}|{a!r}|{0:{1}}'.format('x', 4, a='q') }}|{{ '{a}'.format_map({'a': 1}) }}|{{ '{0[0]}'.format([5]) }}",
    "{{ 'x'.center(9) }}|{{ 'x' | center(9) }}|{{ 'a\nb' | indent(2) }}|{{ '7'.zfill(3) }}|{{ 'a'.ljust(4, '.') }}",
    "{{ messages | map(attribute='role') | join(', ') }}|{{ messages | selectattr('role', 'equalto', 'user') | list }}",
    "{{ [3, 1, 2] | sort | join }}|{{ [1, 2, 3] | batch(2, 0) | list }}|{{ [1, 2, 3] | slice(2) | list }}",
    "{{ [1, 1, 2] | unique | list }}|{{ [1, 2] | sum }}|{{ [[1], [2]] | sum(start=[]) }}",
    "{{ 'ab' | list | reverse | join }}|{{ range(3) | list }}|{{ 'é' | urlencode }}|{{ 'ab' | reverse }}",
    "{% for role, group in messages | groupby('role') %}{{ role }}:{{ group | length }}{% endfor %}",
    "{{ {'a': [1, {'b': 2}]} | tojson(indent=2) }}|{{ {'b': 1, 'a': 2} | dictsort }}|{{ {'a': 1}.items() | list }}",
    "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}|{{ {'a': 1} | items | list }}|{{ {'a': 1} }}",
    "{% macro m(a, b=[1]) %}{{ a }}{{ b }}{{ caller() if caller else '' }}{% endmacro %}{{ m('x') }}"
    "{% call m('y') %}inner{% endcall %}",
    "{% set block %}a{{ 1 }}{% endset %}{{ block | upper }}|{% filter upper %}b{{ block }}{% endfilter %}",
    "{{ 'a</think>\n b'.split('</think>')[-1].lstrip() }}|{{ 'abc'[1:] }}|{{ 'abc'[::-1] }}|{{ messages[1:] }}",
    "{{ 'a' in 'abc' }}|{{ 1 in [1] }}|{{ 1 < 2 < 3 }}|{{ 'a' is string }}|{{ missing is defined }}|{{ 1 is in [1] }}",
    "{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{{ missing }}{{ missing | default('d') }}|{{ none }}|{{ true }}|{{ '<b>' | e }}|{{ '<b>' | safe ~ '<i>' }}",
    "{{ 'a b' | title | replace('A', 'c') }}|{{ 'abcdef' | truncate(4, true) }}|{{ 'aa bb' | wordwrap(2) }}",
    "{% set ns = namespace(seen=[]) %}{% for m in messages %}{% set ns.seen = ns.seen + [m.role] %}{% endfor %}"
    "{{ ns.seen }}",
    "{{ 'x'.encode().hex() }}|{{ 'a,b'.partition(',') }}|{{ 'a\nb'.splitlines() }}",
)


@pytest.mark.parametrize("template", ORDINARY)
def test_ordinary_templates_write_what_they_do_elsewhere(template: str) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs: Any = PreTrainedTokenizerFast(tokenizer_object=backend)  # type: ignore[no-untyped-call]
    theirs.chat_template = template
    assert ChatTemplate(template).render(messages) == theirs.apply_chat_template(messages, tokenize=False)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)
TEXTS = st.text(st.sampled_from("ab \t\n<&😀")).map(str)
WIDTHS = st.integers(0, 300)
GROWN = st.one_of(
    st.tuples(st.sampled_from(["center", "ljust", "rjust", "zfill", "expandtabs"]), TEXTS, st.tuples(WIDTHS)),
    st.tuples(st.sampled_from(["replace"]), TEXTS, st.tuples(TEXTS, TEXTS)),
    st.tuples(st.sampled_from(["join"]), TEXTS, st.tuples(st.lists(TEXTS))),
    st.tuples(st.sampled_from(["split", "rsplit"]), TEXTS, st.just(()) | st.tuples(st.just("a"))),
    st.tuples(st.sampled_from(["splitlines", "upper", "strip", "encode", "casefold"]), TEXTS, st.just(())),
)
FILTERED = st.one_of(
    st.tuples(st.just("center"), TEXTS, st.tuples(WIDTHS)),
    st.tuples(st.just("indent"), TEXTS, st.tuples(WIDTHS | TEXTS, st.booleans(), st.booleans())),
    st.tuples(st.just("replace"), TEXTS, st.tuples(TEXTS, TEXTS)),
    st.tuples(st.just("join"), st.lists(TEXTS | st.integers()), st.tuples(TEXTS)),
    st.tuples(st.just("batch"), st.lists(st.integers()), st.tuples(st.integers(1, 300), st.integers())),
    st.tuples(st.just("slice"), st.lists(st.integers()), st.tuples(st.integers(1, 300), st.integers())),
    st.tuples(st.just("wordwrap"), TEXTS, st.tuples(st.integers(1, 9), st.booleans(), TEXTS)),
    st.tuples(st.just("truncate"), TEXTS, st.tuples(st.integers(20, 300), st.booleans(), TEXTS.map(lambda t: t[:20]))),
    st.tuples(st.sampled_from(["escape", "forceescape", "urlencode", "urlize", "title", "list"]), TEXTS, st.just(())),
    st.tuples(st.sampled_from(["string", "pprint", "trim"]), VALUES, st.just(())),
)


@given(VALUES)
def test_a_value_weighs_at_least_what_its_text_takes(value: Any) -> None:
    weight = Budget().weigh(value)
    assert len(str(value)) <= ESCAPED * weight.size
    assert weight.depth == _depth(value)


@given(GROWN)
def test_a_method_makes_no_more_than_is_foreseen(case: tuple[str, Any, Any]) -> None:
    name, value, arguments = case
    made = getattr(value, name)(*arguments)
    assert _bytes(made) <= of_method(Budget(), name, value, arguments) + _given(value)


@given(FILTERED)
def test_a_filter_makes_no_more_than_is_foreseen(case: tuple[str, Any, Any]) -> None:
    name, value, arguments = case
    made = Environment().call_filter(name, value, arguments)
    made = made if isinstance(made, str) else list(made)
    assert _bytes(made) <= of_filter(Budget(), name, value, arguments) + _given(value)


@given(VALUES, st.integers(0, 9), st.booleans())
def test_json_takes_no_more_than_is_foreseen(value: Any, indent: int, ascii_only: bool) -> None:
    made = ChatTemplate("{{ messages[0].content | tojson(ascii_only, indent) }}").render(
        [{"role": "user", "content": value}] if value is not None else [{"role": "user", "content": 0}],
        variables={"ascii_only": ascii_only, "indent": indent},
    )
    assert len(made) <= of_filter(Budget(), "tojson", value, (ascii_only, indent)) + _given(value)


@given(st.sampled_from(["%5s", "%-300d", "%s%%", "%.99f", "%(a)s%(a)s", "%r", "%*d"]), VALUES)
def test_a_format_takes_no_more_than_is_foreseen(form: str, value: Any) -> None:
    values = {"a": value} if "(a)" in form else (300, 7) if "*" in form else (value,)
    try:
        made = form % values
    except (TypeError, ValueError, OverflowError):
        return
    assert _bytes(made) <= formatted(Budget(), form, values) + _given(value)


@given(TEXTS | st.lists(st.integers()), st.integers(-3, 300))
def test_a_product_takes_no_more_than_is_foreseen(items: Any, times: int) -> None:
    made = items * times
    assert len(made) * (1 if isinstance(items, str) else 8) <= product("*", items, times) == product("*", times, items)


def _depth(value: Any) -> int:
    parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list | tuple) else None
    return 0 if parts is None else max((1 + _depth(part) for part in parts), default=0)


def _bytes(value: Any) -> int:
    return Budget().weigh(value).size


def _given(value: Any) -> int:
    """Bytes for the value itself and a few small objects."""
    return 3 * _bytes(value) + 512
