import pytest

from engine.errors import InvalidRequest
from engine.text.chat_template import ChatTemplate

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STRICT = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "[{{ m.role }}: {{ m.content | trim }}]{% endfor %}"
)


def template(source: str, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens)


def says(role: str, content: str = "hi") -> dict[str, str]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("source", [
    CHATML,
    "{{ {'a': '<é>', 'b': [1, none]} | tojson }}{{ [1] | tojson(indent=2) }}",
    "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
    "{%- for m in messages[::-1] if m.role == 'user' -%}{{ loop.revindex0 }}{%- else -%}none{%- endfor -%}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n * 3 }}",
    "{% for i in range(messages | length - 1, -1, -1) %}{{ messages[i].role }}{% endfor %}{{ '-' * 3 }}",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}",
    "{% for x in nothing %}{{ x }}{% endfor %}{{ tools is none }}{{ bos_token }}\n",
])  # fmt: skip
def test_renders_as_transformers_does(source):
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [says("user", "Ünï"), says("assistant", " ok "), says("user", "<b>&")]
    expected, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True, bos_token="<s>")
    assert template(source, bos_token="<s>").render(messages) == expected[0]


@pytest.mark.parametrize("messages, reason", [
    ([says("system"), says("user")], "System role not supported"),
    ([says("user"), says("user")], "Roles must alternate"),
    ([says("wizard")], "Roles must alternate"),
])  # fmt: skip
def test_te_03_a_template_refuses_in_its_own_words(messages, reason):
    with pytest.raises(InvalidRequest) as refusal:
        template(STRICT, bos_token="<s>").render(messages)
    assert (str(refusal.value), refusal.value.param) == (reason, "messages")


def test_te_03_a_template_accepts_what_it_does_not_refuse():
    rendered = template(STRICT, bos_token="<s>").render([says("user"), says("assistant"), says("user")])
    assert rendered == "<s>[user: hi][assistant: hi][user: hi]"


@pytest.mark.parametrize("source", [
    "{{ ''.__class__.__mro__ }}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(1000000000) %}x{% endfor %}",
    "{% set r = range(90000) %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
    "{{ 'x' * 1000000000 }}",
    "{{ 1000000000 * 'x' }}",
    "{% for i in range(1000) %}{{ 'x' * 100000 }}{% endfor %}",
    "{{ messages.append(1) }}",
    "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "{{ messages[0].content + 1 }}",
    "{% if %}",
    "{{ unknown.attribute }}",
])  # fmt: skip
def test_te_03_what_a_template_must_not_or_cannot_do_is_the_request_s_error(source):
    with pytest.raises(InvalidRequest, match="chat template failed"):
        template(source).render([says("user")])


def test_te_03_roles_that_a_template_ignores_are_refused():
    ignoring = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with pytest.raises(InvalidRequest, match=r"messages\[1\].*no role 'wizard'"):
        template(ignoring).render([says("user"), says("wizard", "abracadabra")])
    assert template("{{ messages[0].content }}").render([says("wizard")]) == "hi"


def test_developer_reaches_templates_that_know_it():
    messages = [says("developer")]
    assert template("{{ messages[0].role }}").render(messages) == "system"
    assert template("{{ messages[0].role }}{# developer #}").render(messages) == "developer"


@pytest.mark.parametrize("content, expected", [
    ("Once upon ", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nOnce upon "),
    ("", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
])  # fmt: skip
def test_the_final_message_is_left_open_to_continue(content, expected):
    messages = [says("user"), says("assistant", content)]
    continued = template(CHATML).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert continued == expected
    assert messages[-1]["content"] == content


def test_a_continued_message_is_trimmed_where_the_template_trims():
    messages = [says("user"), says("assistant", "Once upon ")]
    rendered = template(STRICT, bos_token="").render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == "[user: hi][assistant: Once upon"


@pytest.mark.parametrize("messages, options", [
    ([says("user")], {"add_generation_prompt": True}),
    ([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}], {}),
])  # fmt: skip
def test_a_continuation_that_makes_no_sense_is_refused(messages, options):
    with pytest.raises(InvalidRequest) as refusal:
        template(CHATML).render(messages, **{"add_generation_prompt": False, "continue_final_message": True, **options})
    assert refusal.value.param == "continue_final_message"


def test_a_template_that_drops_the_message_to_continue_is_refused():
    with pytest.raises(InvalidRequest, match="drops the message"):
        template("{{ messages[0].role }}").render(
            [says("user")], add_generation_prompt=False, continue_final_message=True
        )


def test_tools_choose_their_own_template_and_arrive_there():
    both = ChatTemplate({"default": "plain", "tool_use": "{{ tools | tojson }}"}, {})
    assert both.render([says("user")]) == "plain"
    assert both.render([says("user")], tools=[{"name": "f"}]) == '[{"name": "f"}]'


def test_kwargs_reach_the_template_but_do_not_replace_its_messages():
    thinking = template("{{ enable_thinking }}")
    assert thinking.render([says("user")], chat_template_kwargs={"enable_thinking": False}) == "False"
    with pytest.raises(InvalidRequest, match="'messages' is not for") as refusal:
        thinking.render([says("user")], chat_template_kwargs={"messages": []})
    assert refusal.value.param == "chat_template_kwargs"


def test_te_03_without_a_default_template_the_client_is_told_what_to_do():
    with pytest.raises(InvalidRequest, match=r"no chat template.*/v1/completions"):
        ChatTemplate({"tool_use": "x"}, {}).render([says("user")])


@pytest.mark.parametrize("source, takes_tools", [
    ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
    ("{% if not tools is defined %}{% set tools = none %}{% endif %}", True),
    ("{% set tools = tools | default(none) %}{{ tools }}", True),
    ("your tools: {{ messages }}", False),
    ("{% if %}", False),
])  # fmt: skip
def test_a_template_that_never_reads_tools_is_told_apart(source, takes_tools):
    assert template(source).takes_tools is takes_tools


def test_what_a_template_mentions():
    both = ChatTemplate({"default": "plain", "tool_use": "<tool_call>"}, {})
    assert both.mentions("x", "<tool_call>")
    assert not both.mentions("x")
    assert not both.mentions()
