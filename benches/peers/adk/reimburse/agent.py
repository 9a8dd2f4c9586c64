"""The reimbursement agent for ADK, with a scripted model that answers at once."""

from google.adk.agents import Agent
from google.adk.models import BaseLlm, LlmResponse
from google.adk.tools import LongRunningFunctionTool
from google.genai import types

REQUEST = {"purpose": "conference travel", "amount": 200.0}


def says(text):
    return types.Part(text=text)


def calls(name):
    return types.Part(function_call=types.FunctionCall(name=name, args=REQUEST))


def reply(told):
    """What the model says to the last part it was told."""
    response = told.function_response
    if response is None:
        return calls("ask_for_approval")
    status = response.response.get("status")
    if response.name == "ask_for_approval" and status == "pending":
        return says("The request was sent for approval.")
    if response.name == "ask_for_approval" and status == "approved":
        return calls("reimburse")
    if response.name == "reimburse":
        return says("Your $200 has been reimbursed.")
    return says("It was not approved.")


class Scripted(BaseLlm):
    model: str = "scripted"

    async def generate_content_async(self, llm_request, stream=False):
        told = llm_request.contents[-1].parts[-1]
        yield LlmResponse(content=types.Content(role="model", parts=[reply(told)]))


def reimburse(purpose: str, amount: float) -> dict[str, str]:
    """Reimburses the amount to the employee."""
    return {"status": "ok"}


def ask_for_approval(purpose: str, amount: float) -> dict[str, str]:
    """Asks for approval of the reimbursement."""
    return {"status": "pending", "ticketId": "reimbursement-ticket-001"}


root_agent = Agent(
    name="reimbursement_agent",
    model=Scripted(),
    instruction="You handle reimbursements; over $100 ask for approval first.",
    tools=[reimburse, LongRunningFunctionTool(func=ask_for_approval)],
)
