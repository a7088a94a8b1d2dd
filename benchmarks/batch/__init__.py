"""What does `plimsoll batch` give beside our own server's HTTP clients, and is its memory flat?"""
