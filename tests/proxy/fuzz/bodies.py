"""Requests as harnesses send them, one whole conversation for each dialect: what fuzzing begins from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy.dialects import signature

Json = dict[str, Any]
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA: Json = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "n": {"type": "integer", "minimum": 0}},
    "required": ["command"],
}
SEALED = signature.seal("Hm, I look first.")


@dataclass(frozen=True)
class CallSpec:
    """A request that is answered with 200."""

    dialect: str
    target: str
    body: Json


CHAT: Json = {
    "model": "polar",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "low"}},
                {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGk="}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}},
                {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "done"}]},
    ],
    "tools": [
        {
            "type": "function",
            "function": {"name": "bash", "description": "Runs.", "parameters": SCHEMA, "strict": False},
        },
        {
            "type": "custom",
            "custom": {
                "name": "patch",
                "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /.+/"}},
            },
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "temperature": 0.7,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.0,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.0,
    "seed": 7,
    "max_completion_tokens": 32,
    "stop": ["END"],
    "reasoning_effort": "low",
    "stream": False,
    "stream_options": {"include_usage": True},
    "n": 1,
    "logprobs": True,
    "metadata": {"a": "b"},
}
CHAT_STRUCTURED: Json = {
    "messages": [{"role": "developer", "content": "Answer in JSON."}, {"role": "user", "content": "Go."}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
    "max_tokens": 16,
    "stream": True,
    "n": 2,
}
RESPONSES: Json = {
    "model": "polar",
    "instructions": "Be brief.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<env>"}]},
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "What is this?"},
                {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
                {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGk="},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": SEALED,
        },
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "shell", "arguments": '{"command": "ls"}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": "*** Begin"},
        {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ls"], "env": {}}},
        {"type": "tool_search_call", "call_id": "c4", "execution": "client", "arguments": {"query": "x"}},
        {"type": "shell_call", "call_id": "c5", "action": {"commands": ["ls"]}},
        {"type": "apply_patch_call", "call_id": "c6", "operation": {"type": "delete_file", "path": "a"}},
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "local_shell_call_output", "id": "c3", "output": "a.txt"},
        {"type": "tool_search_output", "call_id": "c4", "tools": [{"type": "function", "name": "x"}]},
        {
            "type": "shell_call_output",
            "call_id": "c5",
            "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        {"type": "apply_patch_call_output", "call_id": "c6", "status": "completed", "output": "ok"},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "y", "parameters": SCHEMA}]},
        {"type": "agent_message", "content": [{"type": "input_text", "text": "hi"}]},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "Runs.", "parameters": SCHEMA, "strict": False},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "go", "parameters": SCHEMA}]},
        {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": SCHEMA},
        {"type": "local_shell"},
        {"type": "shell", "environment": {"type": "local"}},
        {"type": "apply_patch"},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "text": {"verbosity": "low"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "max_output_tokens": 32,
    "metadata": {"a": "b"},
    "truncation": "auto",
    "top_p": 1,
    "temperature": 1,
}
RESPONSES_BARE: Json = {
    "input": "Go.",
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}},
    "store": True,
    "max_output_tokens": 16,
}
MESSAGES: Json = {
    "model": "claude",
    "max_tokens": 32,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=1"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is this?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
                {
                    "type": "document",
                    "title": "a",
                    "source": {"type": "text", "media_type": "text/plain", "data": "hi"},
                },
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
                {
                    "type": "search_result",
                    "source": "http://x",
                    "title": "t",
                    "content": [{"type": "text", "text": "y"}],
                },
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": SEALED},
                {"type": "redacted_thinking", "data": SEALED},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}, {"type": "tool_reference", "tool_name": "Grep"}],
                },
            ],
        },
        {"role": "system", "content": "A reminder.", "output_config": {"effort": "low"}},
        {"role": "user", "content": [{"type": "compaction", "content": "What was."}, {"type": "text", "text": "Go."}]},
    ],
    "tools": [
        {"name": "Bash", "description": "Runs.", "input_schema": SCHEMA},
        {"name": "Grep", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "high"},
    "stop_sequences": ["END"],
    "temperature": 1,
    "top_p": 0.9,
    "top_k": 40,
    "stream": True,
    "metadata": {"user_id": "u"},
    "context_management": {"edits": []},
}
MESSAGES_BARE: Json = {
    "model": "claude",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Go."}],
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
}
GENERATE: Json = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {
            "role": "user",
            "parts": [
                {"text": "What is this?"},
                {"inlineData": {"mimeType": "image/png", "data": PNG}},
                {"fileData": {"mimeType": "text/plain", "fileUri": "http://x"}},
            ],
        },
        {
            "role": "model",
            "parts": [
                {"text": "Hm.", "thought": True},
                {"functionCall": {"name": "run", "args": {"command": "ls"}}, "thoughtSignature": SEALED},
                {"executableCode": {"code": "1", "language": "PYTHON"}},
                {"codeExecutionResult": {"output": "1"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "run", "response": {"output": "a.txt"}, "parts": [{"text": "x"}]}},
            ],
        },
    ],
    "tools": [
        {
            "functionDeclarations": [
                {"name": "run", "description": "Runs.", "parametersJsonSchema": SCHEMA},
                {
                    "name": "find",
                    "parameters": {
                        "type": "OBJECT",
                        "nullable": True,
                        "properties": {
                            "q": {"type": "STRING", "minLength": "1"},
                            "any": {"anyOf": [{"type": "NUMBER"}]},
                        },
                    },
                },
            ]
        },
        {"googleSearch": {}},
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["run"]}},
    "generationConfig": {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "candidateCount": 1,
        "maxOutputTokens": 32,
        "stopSequences": ["END"],
        "seed": 3,
        "presencePenalty": 0.1,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 512},
    },
    "safetySettings": [],
}
GENERATE_BARE: Json = {
    "contents": {"parts": {"text": "Go."}},
    "generation_config": {
        "max_output_tokens": "16",
        "response_mime_type": "application/json",
        "response_schema": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
    },
}
GOOGLE = "/v1beta/models/gemini"
ASKED = [
    CallSpec("openai_chat", "/v1/chat/completions", CHAT),
    CallSpec("openai_chat", "/chat/completions", CHAT_STRUCTURED),
    CallSpec("openai_responses", "/v1/responses", RESPONSES),
    CallSpec("openai_responses", "/responses", RESPONSES_BARE),
    CallSpec("openai_responses", "/v1/responses/input_tokens", RESPONSES),
    CallSpec("anthropic_messages", "/v1/messages", MESSAGES),
    CallSpec("anthropic_messages", "/v1/messages", MESSAGES_BARE),
    CallSpec("anthropic_messages", "/v1/messages/count_tokens", MESSAGES),
    CallSpec("google_generate_content", f"{GOOGLE}:generateContent", GENERATE),
    CallSpec("google_generate_content", f"{GOOGLE}:streamGenerateContent?alt=sse", GENERATE),
    CallSpec("google_generate_content", f"{GOOGLE}:streamGenerateContent", GENERATE_BARE),
    CallSpec("google_generate_content", f"{GOOGLE}:countTokens", {"generateContentRequest": GENERATE}),
    CallSpec(
        "google_generate_content",
        "/v1beta1/projects/p/locations/global/publishers/google/models/gemini:generateContent",
        GENERATE_BARE,
    ),
]
