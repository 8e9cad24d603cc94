import sys

from agents import Agent, Runner, function_tool, set_default_openai_api
from tool import bash

if sys.argv[2] == "openai_chat":
    set_default_openai_api("chat_completions")
agent = Agent(name="mender", instructions="Mend what is wrong.", tools=[function_tool(bash)])
print(Runner.run_sync(agent, sys.argv[1]).final_output)
