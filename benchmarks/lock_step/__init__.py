"""The served application compared with what people run today: beam search in lock step, engines in the same process."""
