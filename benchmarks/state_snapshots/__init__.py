"""What do snapshots of recurrent states spare, and what do they cost where nothing is shared?"""
