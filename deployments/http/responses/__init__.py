"""OpenAI's Responses API: requests, replies, stored responses and their routes."""
