"""Chat templates: equal to transformers on the dialects in use."""

# ruff: noqa: E501
from __future__ import annotations

import json
import threading

import pytest

from edgespec.errors import ModelError, OptionError
from edgespec.text.chat_template import DEFAULT_STOP, TEMPLATE_CHARACTERS, ChatTemplate, read_templates

TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}{% set tools = custom_tools %}{% endif %}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if tools %}{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " ~ message["content"] ~ "[/INST]" }}
        {%- endif %}
    {%- else %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
"""

CHATML = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% for message in messages %}
{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{% generation %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endgeneration %}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

ODDS = """{% macro line(m, sep=': ') %}{{ m.role|upper ~ sep ~ (m.content | replace('a', 'b')) }}{% endmacro %}
{% for m in messages if m.role != 'system' %}
  {%- if loop.index > 3 %}{% break %}{% endif %}
  {% if m.content == 'skip' %}{% continue %}{% endif %}
{{ loop.index0 }}/{{ loop.length }} {{ loop.previtem.role if not loop.first }} {{ line(m) | indent(2, true) }}
{% else %}nobody{% endfor %}
{{ [1, 2, 3] + [4] }} {{ (1, 2) }} {{ {'a': [none, true]}|tojson }} {{ 'x' * 3 }} {{ 7 // 2 }} {{ '%05.1f' % 2.5 }}
{{ 'a-{}-{}'.format(1, 'z') }} {{ messages | map(attribute='role') | unique | join(', ') }} {{ {'k': 1, 'j': 2} | dictsort }}
{% set box %}<{{ messages[0].content[:3] }}>{% endset %}{{ box }}{{ box|length }}
{% for a, b in {'p': 1}.items() %}{{ a }}={{ b }}{% endfor %}{{ undefined_name }}{{ messages[0].nothing }}
{% for group in messages | groupby('role') %}{{ group.grouper }}:{{ group.list|length }} {% endfor %}
{{ ['b', 'a']|sort|first }}{{ range(3)|list }}{{ 3 is odd }}{{ 'b' in 'abc' }}{{ [3,1]|max }}{{ '<&>'|e }}"""

USER = {"role": "user", "content": "  Häl\nlo 你好 <b> "}
ASSISTANT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi & bye"}
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, "é"]}}}],
}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
]
CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "skip"}, ASSISTANT, USER],
    "answered": [USER, ASSISTANT],
}
TEMPLATES = {
    "llama3": LLAMA3,
    "mistral": MISTRAL,
    "chatml": CHATML,
    "qwen3": QWEN3,
    "zephyr": ZEPHYR,
    "odds": ODDS,
}


def theirs(template: str, messages, **options) -> str:
    """transformers' rendering."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, "<unk>"))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **TOKENS)
    return tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_equals_transformers(name, chat, prompt):
    template, messages = TEMPLATES[name], CHATS[chat]
    expected = theirs(template, messages, add_generation_prompt=prompt)
    assert ChatTemplate({"default": template}, TOKENS).render(messages, prompt) == expected
    assert len(expected) >= 30


def test_tools_and_variables_equal_transformers():
    template = ChatTemplate({"default": LLAMA3}, TOKENS)
    messages = [USER, CALL]
    assert template.render(messages, tools=TOOLS) == theirs(
        LLAMA3, messages, tools=TOOLS, add_generation_prompt=True
    )
    qwen = ChatTemplate({"default": QWEN3}, TOKENS)
    assert qwen.render([USER], enable_thinking=False) == theirs(
        QWEN3, [USER], enable_thinking=False, add_generation_prompt=True
    )
    assert qwen.render([USER], enable_thinking=False) != qwen.render([USER])


def test_named_templates():
    template = ChatTemplate({"default": "plain", "tool_use": "{{ tools[0].function.name }}"})
    assert template.render([USER]) == "plain"
    assert template.render([USER], tools=TOOLS) == "add"
    with pytest.raises(ModelError, match="none of them 'default'"):
        ChatTemplate({"rag": "x"}).render([USER])


def test_a_model_without_a_template_gets_the_default_one():
    template = ChatTemplate({}, TOKENS)
    assert not template.is_chat
    assert template.stop == DEFAULT_STOP
    answer = {"role": "assistant", "content": "Yes."}
    expected = "System: Be brief.\nUser: Well?\nAssistant: Yes.\nUser: Well?\nAssistant:"
    question = {"role": "user", "content": "Well? "}
    assert template.render([SYSTEM, question, answer, question]) == expected
    chat = ChatTemplate({"default": CHATML})
    assert chat.is_chat
    assert chat.stop == ()


def test_templates_of_a_directory(tmp_path):
    assert read_templates(tmp_path, {}) == {}
    assert read_templates(tmp_path, {"chat_template": "a"}) == {"default": "a"}
    named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    assert read_templates(tmp_path, {"chat_template": named}) == {"default": "d", "tool_use": "t"}
    for bad in (7, [7], [{"name": "default"}]):
        with pytest.raises(ModelError, match="chat_template is neither"):
            read_templates(tmp_path, {"chat_template": bad})
    (tmp_path / "chat_template.jinja").write_text("file é", encoding="utf-8")
    assert read_templates(tmp_path, {"chat_template": "a"}) == {"default": "file é"}
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("more")
    assert read_templates(tmp_path, {}) == {"default": "file é", "tool_use": "more"}
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="not UTF-8"):
        read_templates(tmp_path, {})
    (tmp_path / "chat_template.jinja").write_bytes(b"x" * (4 * TEMPLATE_CHARACTERS + 1))
    with pytest.raises(ModelError, match="may have"):
        read_templates(tmp_path, {})


def test_long_conversations_are_no_attack():
    turn = {"role": "user", "content": "word " * 1000}
    messages = [turn, {"role": "assistant", "content": "ok " * 1000}] * 250  # two million characters
    for template in (LLAMA3, MISTRAL, CHATML, QWEN3):
        text = ChatTemplate({"default": template}, TOKENS).render(messages)
        assert text.count("ok") == 250_000


def test_messages_that_are_not_messages():
    template = ChatTemplate({"default": CHATML})
    deep: list = []
    for _ in range(50):
        deep = [deep]
    for messages in ([], ["hi"], [{"content": "hi"}], [{"role": 3}], [{"role": "user", "content": object()}]):
        with pytest.raises(OptionError):
            template.render(messages)
    with pytest.raises(OptionError, match="32 deep"):
        template.render([{"role": "user", "content": deep}])


def test_renders_in_several_threads():
    template, found = ChatTemplate({"default": QWEN3}, TOKENS), []
    expected = template.render(CHATS["turns"])
    threads = [
        threading.Thread(target=lambda: found.append(template.render(CHATS["turns"]))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


def test_the_caller_keeps_its_messages():
    messages = json.loads(json.dumps(CHATS["turns"]))
    ChatTemplate({"default": MISTRAL}, TOKENS).render(messages)
    assert messages == CHATS["turns"]
