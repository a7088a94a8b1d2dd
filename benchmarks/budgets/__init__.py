"""How near do several gateways together come to the limits of a key?"""
