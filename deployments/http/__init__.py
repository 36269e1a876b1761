"""The HTTP contract: what OpenAI clients send and get, independent of Ray Serve and of the engines."""
