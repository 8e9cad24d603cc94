"""The shipped tokenizer, template and parser, and Hypothesis strategies for turns that are out to break them."""

from hypothesis import strategies as st

from polar.scripted.answer import AnswerParser
from polar.scripted.conversation import Call, Turn
from polar.scripted.template import ChatTemplate
from polar.scripted.tokenizer import SPECIALS, Tokenizer

TOKENIZER = Tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
PARSER = AnswerParser(TOKENIZER)

_SHARDS = [*SPECIALS, "\n", " ", "\0", "\0n", "\0l", "<", "}", '"', '{"name": "x", "arguments": {}}', "é", "日", "🎉"]
TEXTS = st.text() | st.lists(st.sampled_from(_SHARDS) | st.text(max_size=3), max_size=8).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(Call, st.text(min_size=1), TEXTS)
ANSWERS = st.builds(Turn, st.just("assistant"), TEXTS, st.just("") | TEXTS, st.lists(CALLS, max_size=3).map(tuple))
OTHERS = st.builds(Turn, st.sampled_from(["system", "developer", "user", "tool"]), TEXTS)
TOOLS = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": JSON}), max_size=2)
