"""How large is the code, and how much of it do a step and a request run through?"""
