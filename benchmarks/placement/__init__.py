"""What does placement cost in seconds of loading, beside other rules and beside what no rule could undercut?"""
