import json
import sys

import litellm
from tool import bash

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
messages = [{"role": "user", "content": sys.argv[1]}]
while True:
    answer = litellm.completion("openai/any", messages, tools=TOOLS).choices[0].message
    messages.append(answer.model_dump())
    if not answer.tool_calls:
        break
    for each in answer.tool_calls:
        output = bash(**json.loads(each.function.arguments))
        messages.append({"role": "tool", "tool_call_id": each.id, "content": output})
print(answer.content)
