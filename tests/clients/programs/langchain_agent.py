import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from tool import bash

agent = create_agent(ChatOpenAI(model="any"), tools=[bash])
print(agent.invoke({"messages": [("user", sys.argv[1])]})["messages"][-1].content)
