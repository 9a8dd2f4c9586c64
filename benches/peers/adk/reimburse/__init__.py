"""The application that `adk api_server` serves."""

from . import agent
