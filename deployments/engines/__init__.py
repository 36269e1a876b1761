"""The vLLM engines that write steps and score them. Knows neither Ray nor HTTP."""
