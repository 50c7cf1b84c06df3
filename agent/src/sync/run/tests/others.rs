//! What others leave in the kernel, or take from it.

use portolan_plan::kube_proxy::VIP_DEVICE;

use super::*;

fn metric(rig: &Rig, name: &str) -> String {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &rig.registry).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name}\n{text}"))
        .trim()
        .to_owned()
}

#[tokio::test(start_paused = true)]
async fn what_a_kube_proxy_left_goes_after_the_first_table() {
    let kernel = Shared::default();
    let addresses: BTreeSet<IpAddr> = (0..300_u16)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            [10, 97, high, low].into()
        })
        .collect();
    let device = VIP_DEVICE.to_owned();
    kernel.0.lock().await.devices.insert(device, addresses);
    let clock = boot_clock(Instant::now());
    let mut rig = Rig::with(kernel, tempfile::tempdir().unwrap(), clock);
    pass(60).await;
    assert_eq!(rig.kernel.0.lock().await.devices.len(), 1);
    rig.put(1, tcp(&[STAYS])).await;
    pass(1).await;
    assert!(rig.kernel.0.lock().await.devices.is_empty());
    assert_eq!(metric(&rig, "portolan_agent_takeover_pending"), "0");
    assert_eq!(rig.weight(STAYS).await, Some(1));
}

#[tokio::test(start_paused = true)]
async fn what_somebody_deletes_is_counted_when_it_is_made_good() {
    let mut rig = Rig::start();
    let counted = "portolan_agent_drift_repaired_total";
    rig.put(1, tcp(&[STAYS])).await;
    pass(60).await;
    assert_eq!(metric(&rig, counted), "0");
    // What a table changes is no repair.
    rig.put(2, tcp(&[STAYS, LEAVES])).await;
    pass(30).await;
    assert_eq!(metric(&rig, counted), "0");
    rig.kernel.0.lock().await.state.virtual_servers.clear();
    pass(30).await;
    assert_eq!(rig.weight(STAYS).await, Some(1));
    // The virtual server and two real servers.
    assert_eq!(metric(&rig, counted), "3");
}
