import asyncio
import sys

from google.adk.agents import Agent
from google.adk.runners import InMemoryRunner
from tool import bash


async def main() -> None:
    agent = Agent(name="mender", model="gemini-any", instruction="Mend what is wrong.", tools=[bash])
    for event in await InMemoryRunner(agent).run_debug(sys.argv[1]):
        print(event.content)


asyncio.run(main())
