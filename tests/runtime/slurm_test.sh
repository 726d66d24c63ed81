#!/usr/bin/env bash
# slurm_test.sh - ranks that srun starts, on a Slurm of one node that this script sets up for itself
# (Debian's slurm-wlm; no munge, no root, no systemd) and takes down again. INFINIC_LONG=1: all ways
# to fail; else a sample.
. "$(dirname "${BASH_SOURCE[0]}")/../e2e/lib.sh"
[ "${BUILD##*/}" != asan ] || { echo 'the release build runs this'; exit 77; }
PATH=$PATH:/usr/sbin:/sbin
ranks=$BUILD/tests/mpi/ranks
[ -x "$ranks" ] || { echo "skipped: built without MPI (Debian's libopenmpi-dev)"; exit 77; }
for tool in slurmctld slurmd srun salloc scancel squeue mpirun; do
    command -v "$tool" > /dev/null || { echo "skipped: no $tool (Debian's slurm-wlm, openmpi-bin)"; exit 77; }
done

host=$(hostname -s)
port=$((20000 + $$ % 20000))
dir=$work/slurm
mkdir -p "$dir/state" "$dir/spool"
export SLURM_CONF=$dir/slurm.conf
cat > "$SLURM_CONF" << CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$host NodeAddr=127.0.0.1 CPUs=16 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
srun --mpi=list 2>&1 | grep -q pmix || { echo "skipped: this Slurm has no pmix"; exit 77; }
slurmctld -c -i -D > "$dir/slurmctld.log" 2>&1 &
controller=$!
slurmd -c -D > "$dir/slurmd.log" 2>&1 &
node=$!
take_down() {
    timeout 5 scancel --user="$(id -un)" 2> /dev/null
    kill "$node" "$controller" 2> /dev/null
    wait "$node" "$controller" 2> /dev/null
    rm -rf "$work"
}
trap take_down EXIT
for i in $(seq 50); do
    timeout 5 sinfo -h -t idle -o %n 2> /dev/null | grep -q . && break
    sleep 0.2
done
if ! timeout 20 srun -n 1 true 2> "$work/first.log"; then
    echo "skipped: Slurm does not run here: $(tail -n 1 "$dir/slurmd.log" "$dir/slurmctld.log" "$work/first.log" | tr '\n' ' ')"
    exit 77
fi

# once CODE TEXT COMMAND...: exit code CODE, and TEXT in the only error of the ranks.
once() {
    local code=$1 text=$2 log
    shift 2
    log=$(mktemp "$work/once.XXXXXX")
    exits "$code" timeout 60 "$@" > "$log" 2>&1 && grep -q -F -- "$text" "$log" &&
        [ "$(grep -c '^toy:' "$log")" = 1 ] && return 0
    cat "$log"
    echo "expected exit code $code, and once: $text"
    return 1
}

# signalled COMMAND CODE TEXT: the command runs, with $job and $dir/RANK, while four ranks loop.
signalled() {
    local pids pid got from job i
    pids=$(mktemp -d "$work/pids.XXXXXX")
    RANKS_PIDS=$pids srun -n 4 --mpi=pmix "$ranks" loop 60000 > "$pids.log" 2>&1 &
    pid=$!
    for i in $(seq 400); do
        [ "$(ls "$pids" | wc -l)" = 4 ] && break
        sleep 0.05
    done
    job=$(squeue -h -o %i | head -n 1)
    sleep 0.3
    from=$(date +%s)
    eval "$1"
    wait "$pid"
    got=$?
    cat "$pids.log"
    [ $(($(date +%s) - from)) -le 12 ] || { echo "took $(($(date +%s) - from)) s"; return 1; }
    ! kill -0 $(cat "$pids"/*) 2> /dev/null || { echo "ranks are left"; return 1; }
    [ "$got" = "$2" ] && grep -q -E -- "$3" "$pids.log" && return 0
    echo "exit code $got, expected $2: $3"
    return 1
}

# A batch job that is cancelled: every process gets SIGTERM, mpirun too, and the ranks still agree.
batch() {
    local job i
    printf '#!/bin/sh\nRANKS_PIDS=%s exec %s loop 60000\n' "$work/batch" "$ranks" > "$work/batch.sh"
    mkdir "$work/batch"
    job=$(sbatch --parsable -n 4 -o "$work/batch.log" "$work/batch.sh")
    for i in $(seq 400); do
        [ "$(ls "$work/batch" | wc -l)" = 4 ] && break
        sleep 0.05
    done
    sleep 0.3
    scancel --full -s TERM "$job"
    for i in $(seq 100); do
        squeue -h -j "$job" 2> /dev/null | grep -q . || break
        sleep 0.1
    done
    cat "$work/batch.log"
    scontrol show job "$job" | grep -F 'ExitCode=75:0' && grep -q 'stopped by SIGTERM, all together' "$work/batch.log"
}
four=(srun -n 4 --mpi=pmix)
check "srun starts four ranks: messages" says 'messages are right' "${four[@]}" "$ranks" messages 1
check "a wrong number of tasks" once 2 "hint: srun -n 4 --mpi=pmix $ranks say ..., or without srun" \
    srun -n 3 --mpi=pmix "$ranks" say
check "tasks that nobody connects" once 2 'hint: srun -n 4 --mpi=pmix' srun -n 4 --mpi=none "$ranks" say
check "a task alone starts its ranks itself" says '0 of 4, 4 here' srun -n 1 --mpi=pmi2 "$ranks" say
check "a killed rank" signalled 'kill -9 $(cat $pids/1)' 137 'rank 1 \(process .*\) died at step'
check "scancel: agreed upon" signalled 'scancel $job' 75 'stopped by SIGTERM, all together'
check "a batch job that is cancelled" batch
[ -n "${INFINIC_LONG-}" ] || finish
# Debian's Open MPI speaks PMIx alone; another may speak PMI-2.
check "tasks that PMI-2 connects, or nobody" sh -c "srun -n 4 --mpi=pmi2 '$ranks' say 2>&1 | grep -E '0 of 4|hint: srun -n 4 --mpi=pmix'"
check "one rank is started as two" once 2 'hint: without srun' env RANKS=1 srun -n 2 --mpi=pmix "$ranks" say
check "a program in an allocation" says '0 of 4, 4 here' salloc -Q -n 4 "$ranks" say
check "mpirun in an allocation" says '0 of 4, 4 here' salloc -Q -n 4 mpirun \
    $([ "$(id -u)" != 0 ] || echo --allow-run-as-root) "$ranks" say
check "a rank gives up" once 7 'toy: rank 2: error: rank 2 gives up' "${four[@]}" "$ranks" fail 2 6
check "a rank ends without a word" once 7 'rank 2 (process' "${four[@]}" "$ranks" vanish 2
check "a signal before the time limit" signalled 'scancel -s USR1 $job.0' 75 'stopped by SIGUSR1, all together'
check "a stopped rank" signalled 'kill -STOP $(cat $pids/2)' 137 'rank 2 \(process .*\) has not answered for 8 s'
check "a rank that never comes" once 7 'toy: rank 0: error: rank 2 of 4 has not started within 10 s' "${four[@]}" \
    sh -c "[ \$SLURM_PROCID != 2 ] || exit 0; exec '$ranks' say"
finish
