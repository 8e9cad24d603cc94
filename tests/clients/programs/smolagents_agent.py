import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool
from tool import bash

agent = ToolCallingAgent(tools=[tool(bash)], model=OpenAIModel("any"))
print(agent.run(sys.argv[1]))
