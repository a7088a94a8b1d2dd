"""What does a request cost on its way through the gateway?"""
