"""One launch of the program: started, seen and steered from outside, and ended.

Gives `launch` and `RunningAttempt`: halts, signals, freezes, output and exit status. May
import the other packages of launch, trace, clock and errors.
"""
