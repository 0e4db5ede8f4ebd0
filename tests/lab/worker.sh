# A worker of the lab's jobs: says who it is and runs until it is told to finish.
#
# FIFO ($1) has no writer until then, so opening it blocks, without another process or a timer.
echo "lab-worker group_rank=$GROUP_RANK world=$GROUP_WORLD_SIZE restart=$TORCHELASTIC_RESTART_COUNT pid=$$"
: <"$1"
