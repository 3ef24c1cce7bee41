#!/bin/sh
# Runs every program of this directory without farpage at small sizes. Usage: check.sh DIR [MIB]
# DIR holds the built programs. With WRAP set, each is started by it: WRAP='farpage run -q --ram 32M --' check.sh DIR 128
out=$1
mib=${2:-16}
bad=0
run() {
	name=$1
	if text=$($WRAP "$@" 2>&1); then
		echo "pass ${name##*/}"
		printf '%s\n' "$text" | grep '^skip' | sed 's/^/  /'
	else
		status=$?
		echo "FAIL ${name##*/} (status $status)"
		printf '%s\n' "$text" | grep -v '^ok' | tail -20 | sed 's/^/  /'
		bad=1
	fi
}
for program in sem_malloc sem_mmap sem_mremap sem_protect sem_madvise sem_signals sem_sigmem sem_fork sem_atfork sem_exec \
	sem_syscalls sem_files sem_task sem_ipc sem_remote sem_sockets sem_wait sem_bigio sem_threads sem_ends sem_cancel sem_vfork \
	sem_stacks sem_descriptors sem_huge; do
	run "$out/$program" "$mib"
done
run "$out/spawnmany" "$mib" 150
run "$out/threadmany" "$mib" 2000
run "$out/pressure" "$mib"
run "$out/fill" "$mib" 2
run "$out/killme" "$mib" 4 20 2
run "$out/stress" --seconds 5 --mb "$mib" --threads 4
run "$out/stress" --seconds 5 --mb "$mib" --threads 2 --procs 4 --signal 500
exit $bad
