import sys

from agents import Agent, Runner, function_tool
from tool import bash

agent = Agent(name="mender", instructions="Mend what is wrong.", tools=[function_tool(bash)])
print(Runner.run_sync(agent, sys.argv[1]).final_output)
