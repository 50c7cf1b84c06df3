// SPDX-License-Identifier: Apache-2.0

//! Files, and objects of an API server beside them.

use std::fs;

use super::*;

fn cluster(name: &str, pods: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\nspec:\n  \
         access: {{files: [{name}.yaml]}}\n  network: {{podCIDRs: [{pods}]}}\n---\n"
    )
}

fn names(files: &PolicyFiles) -> Vec<&str> {
    files
        .objects()
        .clusters
        .keys()
        .map(String::as_str)
        .collect()
}

#[test]
fn a_bad_change_leaves_what_was_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    let mut files = PolicyFiles::new(vec![path.clone()]);
    assert!(files.refresh());
    assert!(!files.is_complete() && files.problems()[0].contains("policy.yaml"));

    let good = [
        cluster("eu-1", "10.1.0.0/16"),
        cluster("us-1", "10.2.0.0/16"),
    ]
    .concat();
    fs::write(&path, &good).unwrap();
    assert!(files.refresh());
    assert!(files.is_complete() && !files.refresh());
    assert_eq!(names(&files), ["eu-1", "us-1"]);
    assert_eq!(files.problems(), [""; 0]);
    let in_force = files.objects().clone();

    let bad = [
        cluster("eu-1", "10.1.0.1/16"),
        cluster("ap-1", "10.3.0.0/16"),
    ]
    .concat();
    for (text, problem, expected) in [
        // A network with host bits: its Cluster stays, another one joins, one left.
        (bad.as_str(), "podCIDRs", &["ap-1", "eu-1"][..]),
        ("kind: [", "policy.yaml:1:", &["ap-1", "eu-1"]),
        ("", "empty", &["ap-1", "eu-1"]),
        ("# none any more", "", &[]),
    ] {
        fs::write(&path, text).unwrap();
        assert!(files.refresh());
        assert_eq!(names(&files), expected, "{text:?}: {:?}", files.problems());
        match problem {
            "" => assert_eq!(files.problems(), [""; 0]),
            problem => assert!(
                files.problems()[0].contains(problem),
                "{:?}",
                files.problems()
            ),
        }
        if let Some(kept) = files.objects().clusters.get("eu-1") {
            assert_eq!(Some(kept), in_force.clusters.get("eu-1"));
        }
    }
}

#[test]
fn a_policy_with_a_bad_object_is_complete_if_an_earlier_version_is_known() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    let eu = cluster("eu-1", "10.1.0.0/16");
    let good = [eu.as_str(), &cluster("us-1", "10.2.0.0/16")].concat();
    // A network with host bits.
    let bad = [eu.as_str(), &cluster("us-1", "10.2.0.1/16")].concat();
    for (text, expected) in [(bad.as_str(), &["eu-1"][..]), ("kind: [", &[])] {
        fs::write(&path, text).unwrap();
        let mut files = PolicyFiles::new(vec![path.clone()]);
        assert!(files.refresh());
        assert_eq!(names(&files), expected);
        assert!(!files.is_complete(), "{text:?}: {:?}", files.problems());

        fs::write(&path, &good).unwrap();
        assert!(files.refresh() && files.is_complete());
        fs::write(&path, &bad).unwrap();
        assert!(files.refresh() && files.is_complete());
        assert_eq!(names(&files), ["eu-1", "us-1"]);
        assert!(files.problems()[0].contains("podCIDRs"));
    }
}

#[test]
fn a_new_cluster_that_is_left_out_leaves_the_policy_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    let prod = cluster("prod", "10.1.0.0/16");
    fs::write(&path, &prod).unwrap();
    let mut files = PolicyFiles::new(vec![path.clone()]);
    assert!(files.refresh() && files.is_complete());

    let both = |pods: &str| [cluster("dev", pods), prod.clone()].concat();
    fs::write(&path, both("10.1.0.0/16")).unwrap();
    assert!(files.refresh() && !files.is_complete());
    assert_eq!(names(&files), ["prod"]);
    let problem = &files.problems()[0];
    assert!(
        problem.starts_with("Cluster dev: spec.network.podCIDRs"),
        "{problem}"
    );
    fs::write(&path, both("10.2.0.0/16")).unwrap();
    assert!(files.refresh() && files.is_complete());
    assert_eq!(names(&files), ["dev", "prod"]);
}

#[test]
fn load_balancers_are_named_as_objects_of_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("policy.yaml");
    let other = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n";
    fs::write(
        &path,
        [cluster("eu-1", "10.1.0.0/16").as_str(), other].concat(),
    )
    .unwrap();
    let mut files = PolicyFiles::new(vec![dir.path().to_owned()]);
    assert!(files.refresh());
    assert_eq!(names(&files), ["eu-1"]);
    assert!(files.problems()[0].contains("Service is no object of the policy"));
}

mod of_server {
    use portolan_source::kubernetes::Resource;
    use serde_json::json;

    use super::*;

    fn listed() -> Resources {
        Resources {
            listed: resources().iter().map(|kind| kind.kind).collect(),
            ..Resources::default()
        }
    }

    fn with(mut all: Resources, name: &str, pods: &str) -> Resources {
        let spec = json!({"access": {"edge": {}}, "network": {"podCIDRs": [pods]}});
        let object = Resource {
            created: Some(1),
            spec,
            ..Resource::default()
        };
        all.objects.insert(("Cluster", name.to_owned()), object);
        all
    }

    fn served() -> PolicyFiles {
        let mut files = PolicyFiles::new(Vec::new());
        files.expect_served();
        assert!(files.refresh());
        files
    }

    #[test]
    fn nothing_is_in_force_before_all_kinds_were_listed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        fs::write(&path, cluster("us-1", "10.2.0.0/16")).unwrap();
        let mut files = PolicyFiles::new(vec![path]);
        files.expect_served();
        assert!(files.refresh() && !files.is_known());
        let mut part = with(listed(), "eu-1", "10.1.0.0/16");
        part.listed.remove("ExportPolicy");
        let problem = String::from("exportpolicies.portolan.dev: forbidden");
        part.problems.insert("ExportPolicy", problem);
        assert!(files.take(&part) && !files.take(&part));
        assert_eq!(names(&files), [""; 0]);
        assert!(!files.is_known() && files.problems()[0].contains("exportpolicies"));
        assert!(files.take(&with(listed(), "eu-1", "10.1.0.0/16")));
        assert_eq!(names(&files), ["eu-1", "us-1"]);
        assert!(files.is_complete());
        assert_eq!(files.problems(), [""; 0]);
    }

    #[test]
    fn a_first_listing_without_clusters_forgets_no_cluster_from_before() {
        let mut files = served();
        assert!(files.take(&listed()));
        assert!(files.is_known() && !files.is_complete());
        assert!(files.take(&with(listed(), "eu-1", "10.1.0.0/16")));
        assert!(files.is_complete());
        // The last one was deleted.
        assert!(files.take(&listed()));
        assert!(files.is_complete());
        assert_eq!(names(&files), [""; 0]);
    }

    #[test]
    fn a_policy_whose_clusters_are_all_in_files_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy.yaml");
        fs::write(&path, cluster("us-1", "10.2.0.0/16")).unwrap();
        let mut files = PolicyFiles::new(vec![path]);
        files.expect_served();
        assert!(files.refresh() && !files.is_complete());
        assert!(files.take(&listed()));
        assert_eq!(names(&files), ["us-1"]);
        assert!(files.is_complete());
        // So is one whose last Cluster has gone.
        fs::write(dir.path().join("policy.yaml"), "# none any more").unwrap();
        assert!(files.refresh() && files.is_complete());
        assert_eq!(names(&files), [""; 0]);
    }

    #[test]
    fn a_cluster_that_was_created_again_with_another_id_is_not_the_one_before() {
        let mut files = served();
        let of = |uid: &str, id: &str| {
            let mut all = with(listed(), "eu-1", "10.1.0.0/16");
            for object in all.objects.values_mut() {
                object.uid = Some(uid.to_owned());
                object.spec["id"] = json!(id);
            }
            all
        };
        assert!(files.take(&of("u-1", "a")));
        // The same object, and the same id.
        for same in [of("u-1", "b"), of("u-2", "a")] {
            assert_eq!(files.without_recreated(&same), None);
        }
        let again = of("u-2", "b");
        let without = files.without_recreated(&again).unwrap();
        assert!(files.take(&without));
        assert_eq!(names(&files), [""; 0]);
        assert!(files.take(&again));
        assert_eq!(files.objects().clusters["eu-1"].id, "b");
        assert_eq!(files.problems(), [""; 0]);
    }

    #[test]
    fn a_bad_change_at_the_server_leaves_the_object_and_keeps_no_deleted_one() {
        let mut files = served();
        let both = with(with(listed(), "eu-1", "10.1.0.0/16"), "us-1", "10.2.0.0/16");
        assert!(files.take(&both));
        let before = files.objects().clusters["eu-1"].clone();
        assert!(files.take(&with(listed(), "eu-1", "10.1.0.1/16")));
        assert_eq!(names(&files), ["eu-1"]);
        assert_eq!(files.objects().clusters["eu-1"], before);
        let problem = &files.problems()[0];
        let start = "Cluster eu-1: spec.network.podCIDRs[0]: 10.1.0.1/16 has bits of a host";
        assert!(problem.starts_with(start), "{problem}");
        // What cannot be listed stays as it is.
        let mut failed = with(listed(), "eu-1", "10.1.0.0/16");
        let problem = String::from("clusters.portolan.dev: unavailable");
        failed.problems.insert("Cluster", problem);
        assert!(files.take(&failed));
        assert_eq!(names(&files), ["eu-1"]);
        assert!(files.problems()[0].contains("unavailable"));
    }
}
