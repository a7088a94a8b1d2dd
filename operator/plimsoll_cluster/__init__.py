"""Code that operator and gateway share: stores of Kubernetes objects, which watches fill, and the rules of served
names.
"""
