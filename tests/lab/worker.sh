# A worker of the lab's jobs: reports its start in one line, and runs until the test opens the FIFO $1 for writing.
#
# Opening a FIFO without a writer blocks, so the worker needs neither another process nor a timer.
echo "lab-worker group_rank=$GROUP_RANK world=$GROUP_WORLD_SIZE restart=$TORCHELASTIC_RESTART_COUNT pid=$$"
: <"$1"
