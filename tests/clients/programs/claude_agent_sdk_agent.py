import asyncio
import sys

from claude_agent_sdk import ClaudeAgentOptions, query


async def main() -> None:
    async for message in query(prompt=sys.argv[1], options=ClaudeAgentOptions(permission_mode="bypassPermissions")):
        print(message)


asyncio.run(main())
