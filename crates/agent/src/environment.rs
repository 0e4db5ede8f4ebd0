//! The environment variables of a worker, with torch's names and values. A worker inherits the agent's environment and
//! gets these variables in addition.

use std::ffi::OsString;
use std::path::Path;

use rallypoint_rendezvous::NATIVE_BACKEND;

use crate::config::LaunchConfig;
use crate::error::{AgentError, Result};
use crate::formation::Formation;

/// Environment variables: names and values.
pub(crate) type Environment = Vec<(OsString, OsString)>;

/// A function that returns a variable of the agent's own environment.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The number of the round, for workers in a native rendezvous. A checkpoint writer can refuse to write if a later round
/// has written already.
const ROUND_VARIABLE: &str = "RALLYPOINT_ROUND";

/// Returns the variables of one worker. The worker writes its failure to `error_file`, and its timers to the pipe
/// `timer_file`.
pub(crate) fn environment(
    config: &LaunchConfig,
    formation: &Formation,
    local_rank: u32,
    error_file: Option<&Path>,
    timer_file: Option<&Path>,
    agent_variable: Lookup<'_>,
) -> Result<Environment> {
    let Formation { round, ranks, .. } = formation;
    let master = &round.bootstrap_store_info;
    let uses_agent_store = if round.use_agent_store { "True" } else { "False" };
    let numbers = [
        ("RANK", formation.rank(local_rank)),
        ("GROUP_RANK", round.rank),
        ("ROLE_RANK", formation.role_rank(local_rank)),
        ("LOCAL_WORLD_SIZE", config.nproc_per_node.into()),
        ("WORLD_SIZE", ranks.world_size),
        ("GROUP_WORLD_SIZE", round.world_size),
        ("ROLE_WORLD_SIZE", ranks.role_world_size),
        ("MASTER_PORT", master.master_port.into()),
        ("TORCHELASTIC_RESTART_COUNT", formation.restarts.into()),
        ("TORCHELASTIC_MAX_RESTARTS", config.max_restarts.into()),
    ];
    let texts = [
        ("ROLE_NAME", config.role.as_str()),
        ("MASTER_ADDR", master.master_addr.as_str()),
        ("TORCHELASTIC_RUN_ID", config.rendezvous.run_id.as_str()),
        ("TORCHELASTIC_USE_AGENT_STORE", uses_agent_store),
    ];
    let mut environment = config.extra_environment.clone();
    if config.rendezvous.backend == NATIVE_BACKEND {
        environment.push((ROUND_VARIABLE.into(), round.round.to_string().into()));
    }
    environment.extend(numbers.map(|(name, number)| (name.into(), number.to_string().into())));
    environment.extend(texts.map(|(name, text)| (name.into(), text.into())));
    let handling = agent_variable("TORCH_NCCL_ASYNC_ERROR_HANDLING").unwrap_or_else(|| "1".into());
    environment.push(("TORCH_NCCL_ASYNC_ERROR_HANDLING".into(), handling));
    // Without a log directory the variable is empty. If it were absent, the worker would inherit the agent's own error
    // file.
    let error_file = error_file.map(|path| path.as_os_str().to_owned()).unwrap_or_default();
    environment.push(("TORCHELASTIC_ERROR_FILE".into(), error_file));
    if let Some(path) = timer_file {
        environment.push(("TORCHELASTIC_TIMER_FILE".into(), path.into()));
    }
    environment.extend(device_variables(config, local_rank, agent_variable)?);
    Ok(environment)
}

/// Returns the variables that decide which devices a worker uses.
pub(crate) fn device_variables(
    config: &LaunchConfig,
    local_rank: u32,
    agent_variable: Lookup<'_>,
) -> Result<Environment> {
    if !config.virtual_local_rank {
        return Ok(vec![("LOCAL_RANK".into(), local_rank.to_string().into())]);
    }
    // On AMD devices, `HIP_VISIBLE_DEVICES` takes precedence over `CUDA_VISIBLE_DEVICES`.
    let hip = agent_variable("HIP_VISIBLE_DEVICES")
        .filter(|list| !list.is_empty())
        .map(|list| ("HIP_VISIBLE_DEVICES", list));
    let is_hip = hip.is_some();
    let source =
        hip.or_else(|| agent_variable("CUDA_VISIBLE_DEVICES").map(|list| ("CUDA_VISIBLE_DEVICES", list)));
    let device = match source {
        None => local_rank.to_string(),
        Some((name, list)) => {
            let list = list.to_string_lossy();
            let device = list.split(',').nth(local_rank as usize).ok_or_else(|| {
                AgentError::Config(format!("local_rank {local_rank} exceeds available GPUs in {name}={list}"))
            })?;
            device.trim().to_owned()
        }
    };
    let mut environment: Environment =
        vec![("LOCAL_RANK".into(), "0".into()), ("CUDA_VISIBLE_DEVICES".into(), device.clone().into())];
    if is_hip {
        environment.push(("HIP_VISIBLE_DEVICES".into(), device.into()));
    }
    Ok(environment)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use rallypoint_rendezvous::RendezvousParameters;

    use super::*;
    use crate::config::{CommandMode, WorkerCommand};
    use crate::formation::tests::formation;

    pub(crate) fn config(nproc_per_node: u32) -> LaunchConfig {
        let command = WorkerCommand { target: "worker".into(), args: vec![], mode: CommandMode::Program };
        let rendezvous = RendezvousParameters::new("c10d", "localhost:0", "run", 1, 1).unwrap();
        LaunchConfig { role: "trainer".into(), ..LaunchConfig::new(command, nproc_per_node, rendezvous) }
    }

    fn variables(
        config: &LaunchConfig,
        local_rank: u32,
        agent: &[(&str, &str)],
    ) -> Result<BTreeMap<String, String>> {
        let agent_variable =
            |name: &str| agent.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        let error_file = Path::new("/logs/error.json");
        let made = environment(config, &formation(), local_rank, Some(error_file), None, &agent_variable)?;
        let text = |text: OsString| text.into_string().unwrap();
        Ok(made.into_iter().map(|(name, value)| (text(name), text(value))).collect())
    }

    #[test]
    fn a_worker_gets_torchs_variables() {
        let mut config = config(2);
        config.max_restarts = 3;
        config.extra_environment = vec![("OMP_NUM_THREADS".into(), "1".into())];
        let made = variables(&config, 1, &[]).unwrap();
        let expected = [
            ("GROUP_RANK", "1"),
            ("GROUP_WORLD_SIZE", "3"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("OMP_NUM_THREADS", "1"),
            ("RANK", "5"),
            ("ROLE_NAME", "trainer"),
            ("ROLE_RANK", "3"),
            ("ROLE_WORLD_SIZE", "5"),
            ("TORCHELASTIC_ERROR_FILE", "/logs/error.json"),
            ("TORCHELASTIC_MAX_RESTARTS", "3"),
            ("TORCHELASTIC_RESTART_COUNT", "1"),
            ("TORCHELASTIC_RUN_ID", "run"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ("WORLD_SIZE", "9"),
        ];
        assert_eq!(made, expected.map(|(name, value)| (name.into(), value.into())).into());
    }

    #[test]
    fn workers_in_a_native_rendezvous_get_the_round_in_addition() {
        let mut config = config(1);
        let before = variables(&config, 0, &[]).unwrap();
        config.rendezvous = RendezvousParameters::new(NATIVE_BACKEND, "localhost", "run", 1, 1).unwrap();
        let mut made = variables(&config, 0, &[]).unwrap();
        assert_eq!(made.remove("RALLYPOINT_ROUND").as_deref(), Some("0"));
        assert_eq!(made, before);
    }

    #[test]
    fn without_logs_the_error_file_is_empty_and_not_the_agents_own() {
        let made = environment(&config(1), &formation(), 0, None, Some(Path::new("/t")), &|_| None).unwrap();
        assert!(made.contains(&("TORCHELASTIC_ERROR_FILE".into(), "".into())));
        assert!(made.contains(&("TORCHELASTIC_TIMER_FILE".into(), "/t".into())));
    }

    #[test]
    fn a_value_that_the_user_set_for_nccl_is_kept() {
        let made = variables(&config(1), 0, &[("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")]).unwrap();
        assert_eq!(made["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
    }

    #[test]
    fn with_a_virtual_local_rank_each_worker_has_local_rank_0_and_one_device() {
        let config = LaunchConfig { virtual_local_rank: true, ..config(2) };
        let seen = |agent: &[(&str, &str)]| {
            let made = variables(&config, 1, agent).unwrap();
            assert_eq!(made["LOCAL_RANK"], "0");
            assert_eq!(made["LOCAL_WORLD_SIZE"], "2");
            (made["CUDA_VISIBLE_DEVICES"].clone(), made.get("HIP_VISIBLE_DEVICES").cloned())
        };
        assert_eq!(seen(&[]), ("1".into(), None));
        assert_eq!(seen(&[("CUDA_VISIBLE_DEVICES", "4, 7")]), ("7".into(), None));
        let both = [("CUDA_VISIBLE_DEVICES", "4,5"), ("HIP_VISIBLE_DEVICES", "2,3")];
        assert_eq!(seen(&both), ("3".into(), Some("3".into())));
        assert_eq!(seen(&[("CUDA_VISIBLE_DEVICES", "4,5"), ("HIP_VISIBLE_DEVICES", "")]), ("5".into(), None));
        let error = variables(&config, 1, &[("CUDA_VISIBLE_DEVICES", "4")]).unwrap_err().to_string();
        assert_eq!(error, "local_rank 1 exceeds available GPUs in CUDA_VISIBLE_DEVICES=4");
    }
}
