"""Chat templates that take tools, in the shapes of published models' templates, over the tokens of the embedded one."""

HERMES = (  # Qwen2.5, Qwen3 and Hermes: JSON between tags
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}"
    "# Tools\n\nYou may call functions.\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>\n\n"
    'For each call: <tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}{% if loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CODER = (  # Qwen3-Coder: tags, named by keys of the schema and of the arguments
    "{% macro tags(object, known) %}{% for key in object %}{% if key not in known %}\n<{{ key }}>"
    "{{ object[key] if object[key] is string else object[key] | tojson }}</{{ key }}>{% endif %}{% endfor %}"
    "{% endmacro %}"
    "{% if tools %}<|im_start|>system\n<tools>{% for tool in tools %}{% set f = tool.function %}\n<function>\n"
    "<name>{{ f.name }}</name>\n<description>{{ f.description }}</description>"
    "{% for name, fields in f.parameters.properties | items %}\n<parameter>\n<name>{{ name }}</name>"
    "{% if fields is mapping %}{{ tags(fields, ['name']) }}{% endif %}\n</parameter>{% endfor %}"
    "{{ tags(f.parameters, ['type', 'properties']) }}\n</function>{% endfor %}\n</tools>\n"
    "<tool_call>\n<function=name>\n<parameter=name>\nvalue\n</parameter>\n</function>\n</tool_call><|im_end|>\n"
    "{% endif %}{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% if m.role == 'tool' %}<tool_response>\n{{ m.content }}\n</tool_response>{% else %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}\n<tool_call>\n<function={{ call.function.name }}>"
    "{% for name, value in call.function.arguments | items %}\n<parameter={{ name }}>\n"
    "{{ value if value is string else value | tojson }}\n</parameter>{% endfor %}\n</function>\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {"hermes": HERMES, "coder": CODER}
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
"""Tokens of these models that are not special."""
