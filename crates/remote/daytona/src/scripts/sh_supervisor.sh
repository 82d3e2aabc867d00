atoll_d=$1 atoll_input=$2 atoll_limit=$3 atoll_setsid=$4
shift 4
exec 3>&1 >/dev/null 2>&1
echo $$ >"$atoll_d.sup"
cat <"$atoll_d.o" >>"$atoll_d.out" 3>&- &
atoll_copy_out=$!
cat <"$atoll_d.e" >>"$atoll_d.err" 3>&- &
atoll_copy_err=$!
atoll_open_input
atoll_start_timer
(
  # The process id of this copy of the shell, which the program takes over.
  read -r atoll_pid atoll_rest </proc/self/stat
  echo "$atoll_pid" >"$atoll_d.pid"
  exec $atoll_setsid "$@"
) <&7 >"$atoll_d.o" 2>"$atoll_d.e" 3>&- 7<&-
atoll_finish $? $atoll_copy_out $atoll_copy_err
