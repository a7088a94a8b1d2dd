"""What does `LLM.generate` give beside our own server, over many short requests?"""
