import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from tool import bash

agent = Agent(OpenAIChatModel("any"), tools=[bash])
print(agent.run_sync(sys.argv[1]).output)
