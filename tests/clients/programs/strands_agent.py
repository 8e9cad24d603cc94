import sys

from strands import Agent, tool
from strands.models.openai import OpenAIModel
from tool import bash

agent = Agent(OpenAIModel(model_id="any"), tools=[tool(bash)])
agent(sys.argv[1])
